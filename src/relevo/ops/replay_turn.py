"""One process's turn at a replay: page by page, each stored when it is done, until the end, a stop or a cancel."""

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
from relevo.ops.replay_pauses import Watch
from relevo.ops.replay_sources import Selection
from relevo.ports.broker import Delivery
from relevo.ports.database import Database
from relevo.ports.history import History
from relevo.runtime.probes import probe
from relevo.storage import auditing, replaying
from relevo.storage.replaying import Failure, Stored

PAGE = 200
LOST = "this replay stood still until its lease was over, and another process works on it"


class Report(msgspec.Struct, kw_only=True):
    """How a replay stands. ``state``: running, paused (stopped, to be resumed), done, failed (some messages could not
    be run) or cancelled. ``waits_for``: what somebody paused. ``held_keys``: at the end, keys (topic/key) that are live
    only when a process of the consumer has worked off what arrived meanwhile."""

    job_id: str
    state: str
    total: int | None
    done: int
    handled: int
    skipped: int
    failed: int
    waits_for: str | None = None
    held_keys: list[str] = []


class Worker(Protocol):
    held_keys: Sequence[tuple[str, bytes]]

    async def page(self, deliveries: Sequence[Delivery]) -> Tally: ...
    async def renew(self) -> None: ...
    async def rest(self) -> None: ...
    async def aclose(self) -> None: ...


class Turn:
    """``positions``: by shard, the last position that is done; rewound to before the first failure. What was reached
    before is not run again but for what failed then."""

    def __init__(
        self,
        stored: Stored,
        failed: frozenset[UUID],
        selection: Selection,
        database: Database,
        holder: UUID,
        lease_s: float,
        watch: Watch,
        report: Callable[[Report], None],
    ) -> None:
        self._selection = selection
        self._database = database
        self._holder = holder
        self._lease_s = lease_s
        self._watch = watch
        self._tell = report
        self._rate = stored.rate
        self._again = failed
        self._failed: dict[str, int] = {}
        self.positions = dict(stored.cursor.get("positions", {}))
        self._reached = {**self.positions, **stored.cursor.get("reached", {})}
        for shard, position in stored.cursor.get("failed", {}).items():
            self.positions[shard] = min(self.positions.get(shard, position), position - 1)
        self.report = Report(
            job_id=str(stored.job_id),
            state="running",
            total=stored.total,
            done=max(0, stored.done - len(failed)),
            handled=0,
            skipped=0,
            failed=0,
        )
        self._job_id = stored.job_id

    async def work(self, history: History, worker: Worker, stop: asyncio.Event) -> Report:
        """Raises ``LostOwnershipError`` when another process took over, ``UnreachableError`` when what it needs is away
        for long; the job can be resumed then."""
        state = "paused"
        try:
            async with self._renewing(worker) as lost:
                state = await self._pages(history, worker, stop, lost)
        except LostOwnershipError:
            if not await self._cancelled():
                raise
            state = "cancelled"
        except BaseException:
            await self._leave("paused")
            raise
        await self._leave(state)
        return self.report

    async def _pages(self, history: History, worker: Worker, stop: asyncio.Event, lost: asyncio.Event) -> str:
        """Until there are no more; the state then."""
        limit = PAGE if self._rate is None else max(1, min(PAGE, int(self._rate)))
        began, handed = time.monotonic(), 0
        while not stop.is_set():
            if lost.is_set():
                raise LostOwnershipError(LOST)
            deliveries = await history.take(limit)
            if not deliveries:
                return "failed" if self.report.failed else "done"
            wanted = [delivery for delivery in deliveries if self._wants(delivery)]
            if not await self._unpaused(wanted, worker, stop):
                return "paused"
            await self._page(deliveries, wanted, worker)
            handed += len(wanted)
            if self._rate is not None:
                await _sleep(began + handed / self._rate - time.monotonic(), stop)
        return "paused"

    def _wants(self, delivery: Delivery) -> bool:
        before = delivery.position <= self._reached.get(delivery.shard, -1)
        if before and delivery.message.event_id not in self._again:
            return False
        return self._selection.matches(delivery.message)

    async def _unpaused(self, wanted: Sequence[Delivery], worker: Worker, stop: asyncio.Event) -> bool:
        """Wait while somebody paused something of this page; what the replay holds is let go of meanwhile."""
        while (stopped := await self._watch.stops(wanted)) is not None:
            if self.report.waits_for is None:
                await worker.rest()
            if self.report.waits_for != stopped:
                self.report.waits_for = stopped
                self._tell(self.report)
            await _sleep(self._watch.look_s, stop)
            if stop.is_set():
                return False
            if await self._cancelled():
                raise LostOwnershipError(LOST)
        if self.report.waits_for is not None:
            self.report.waits_for = None
            self._tell(self.report)
        return True

    async def _page(self, deliveries: Sequence[Delivery], wanted: Sequence[Delivery], worker: Worker) -> None:
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
        ran = {delivery.message.event_id for delivery in wanted}
        await self._store("running", tally.failures, (ran & self._again) - failed)
        probe("replay.stored")
        self._tell(report)

    async def _store(
        self, state: str, failures: Sequence[Failure] = (), mended: Sequence[UUID] | set[UUID] = ()
    ) -> None:
        reached = {shard: max(at, self._reached.get(shard, at)) for shard, at in self.positions.items()}
        cursor = {"positions": self.positions, "failed": self._failed, "reached": {**self._reached, **reached}}
        ours = await self._database.run(
            replaying.advance(
                self._job_id, self._holder, cursor, self.report.done, failures, mended=list(mended), state=state
            )
        )
        if not ours:
            raise LostOwnershipError(LOST)

    async def _cancelled(self) -> bool:
        try:
            return await self._database.run(auditing.state_of(self._job_id), read_only=True) == "cancelled"
        except UnreachableError:
            return False

    async def _leave(self, state: str) -> None:
        self.report.state, self.report.waits_for = state, None
        try:
            async with asyncio.timeout(5.0):
                if state != "cancelled":
                    await self._store(state)
                await self._database.run(
                    replaying.leave(self._job_id, self._holder, ended=state in ("done", "cancelled"))
                )
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
