"""One process's turn at a replay: page by page, each stored when it is done, until the end or a stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

import msgspec

from relevo.consumer.replaying import Tally
from relevo.errors import LostOwnershipError, UnreachableError
from relevo.ops.replay_sources import Selection
from relevo.ports.broker import Delivery
from relevo.ports.database import Database
from relevo.ports.history import History
from relevo.runtime.probes import probe
from relevo.storage import replaying
from relevo.storage.replaying import Failure, Stored

PAGE = 200
LOST = "this replay stood still until its lease was over, and another process works on it"


class Report(msgspec.Struct, kw_only=True):
    """How a replay stands. ``state``: running, paused, done or failed (some messages could not be run)."""

    job_id: str
    state: str
    total: int | None
    done: int
    handled: int
    skipped: int
    failed: int


class Worker(Protocol):
    async def page(self, deliveries: Sequence[Delivery]) -> Tally: ...
    async def renew(self) -> None: ...
    async def aclose(self) -> None: ...


class Turn:
    """``positions``: by shard, the last position that is done; rewound to before the first failure."""

    def __init__(
        self,
        stored: Stored,
        selection: Selection,
        database: Database,
        holder: UUID,
        lease_s: float,
        report: Callable[[Report], None],
    ) -> None:
        self._selection = selection
        self._database = database
        self._holder = holder
        self._lease_s = lease_s
        self._tell = report
        self._rate = stored.rate
        self._failed: dict[str, int] = {}
        self.positions = dict(stored.cursor.get("positions", {}))
        for shard, position in stored.cursor.get("failed", {}).items():
            self.positions[shard] = min(self.positions.get(shard, position), position - 1)
        self.report = Report(
            job_id=str(stored.job_id),
            state="running",
            total=stored.total,
            done=0 if stored.cursor.get("failed") else stored.done,
            handled=0,
            skipped=0,
            failed=0,
        )
        self._job_id = stored.job_id

    async def work(self, history: History, worker: Worker, stop: asyncio.Event) -> Report:
        """Raises ``LostOwnershipError`` when another process took over, ``UnreachableError`` when what it needs is away
        for long; the job can be resumed then."""
        limit = PAGE if self._rate is None else max(1, min(PAGE, int(self._rate)))
        began = time.monotonic()
        state = "paused"
        try:
            async with self._renewing(worker) as lost:
                handed = 0
                while not stop.is_set():
                    if lost.is_set():
                        raise LostOwnershipError(LOST)
                    deliveries = await history.take(limit)
                    if not deliveries:
                        state = "failed" if self.report.failed else "done"
                        break
                    handed += await self._page(deliveries, worker)
                    if self._rate is not None:
                        await _sleep(began + handed / self._rate - time.monotonic(), stop)
        except LostOwnershipError:
            raise
        except BaseException:
            await self._leave("paused")
            raise
        await self._leave(state)
        return self.report

    async def _page(self, deliveries: Sequence[Delivery], worker: Worker) -> int:
        wanted = [delivery for delivery in deliveries if self._selection.matches(delivery.message)]
        tally = await worker.page(wanted)
        probe("replay.ran")
        failed = {failure.message.event_id for failure in tally.failures}
        for delivery in deliveries:
            self.positions[delivery.shard] = delivery.position
            if delivery.message.event_id in failed:
                self._failed.setdefault(delivery.shard, delivery.position)
        report = self.report
        report.done += len(wanted)
        report.handled += tally.handled
        report.skipped += tally.skipped
        report.failed += len(tally.failures)
        await self._store("running", tally.failures)
        probe("replay.stored")
        self._tell(report)
        return len(wanted)

    async def _store(self, state: str, failures: Sequence[Failure] = ()) -> None:
        cursor = {"positions": self.positions, "failed": self._failed}
        ours = await self._database.run(
            replaying.advance(self._job_id, self._holder, cursor, self.report.done, failures, state=state)
        )
        if not ours:
            raise LostOwnershipError(LOST)

    async def _leave(self, state: str) -> None:
        self.report.state = state
        try:
            async with asyncio.timeout(5.0):
                await self._store(state)
                await self._database.run(replaying.leave(self._job_id, self._holder, ended=state == "done"))
        except (TimeoutError, UnreachableError, LostOwnershipError):
            pass  # its lease runs out, and it can be resumed then
        self._tell(self.report)

    @asynccontextmanager
    async def _renewing(self, worker: Worker) -> AsyncIterator[asyncio.Event]:
        lost = asyncio.Event()

        async def renew() -> None:
            while not lost.is_set():
                await asyncio.sleep(self._lease_s / 3)
                try:
                    if not await self._database.run(replaying.claim(self._job_id, self._holder, self._lease_s)):
                        lost.set()
                    await worker.renew()
                except UnreachableError:
                    continue

        task = asyncio.create_task(renew())
        try:
            yield lost
        finally:
            task.cancel()
            await asyncio.wait([task])


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    if seconds > 0:
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            pass
