"""``relevo source move`` as a function: between ``mark``, ``log`` and ``wal``, while writers and relays work.

Everything long is done while relays read on; then they are asked to let go of their lanes, the source changes in one
short transaction, and they start anew with the other one. Every step may be cut off: what was done stays true, relays
have their lanes again when the lease of the move runs out, and the same command goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar
from uuid import UUID, uuid4

from relevo.errors import CancelledJobError, LostOwnershipError, UnreachableError
from relevo.ops import moving_indexes as indexes
from relevo.ops.moving_plan import MovePlan, plan
from relevo.ops.moving_wal import Entry, Exit, WalSide
from relevo.ports.database import Database
from relevo.runtime.classify import is_transient
from relevo.runtime.clock import boottime_s
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.settings import Settings
from relevo.storage import auditing, duties, moving, moving_wal
from relevo.storage.auditing import Act, Job
from relevo.storage.duties import Duty
from relevo.storage.moving import Marked
from relevo.storage.waling import LiveKeysError

T = TypeVar("T")

BATCH: Final = 2_000
LOOK_S: Final = 0.2
TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Moved:
    """``marked``: rows that got a marker. ``closed_s``: how long no relay read."""

    origin: str
    target: str
    marked: int
    closed_s: float


async def move(
    database: Database,
    settings: Settings,
    target: str,
    *,
    actor: str,
    reason: str = "",
    report: Callable[[str], None] = lambda text: None,
) -> Moved | None:
    """Move to ``target``; ``None``: the tables are read by it already. May be called again after any interruption.

    Needs a role that owns the tables. Waits as long as it takes for relays to let go; they do within a third of their
    lease and the time that is in flight. Raises as ``plan``; ``LostOwnershipError`` while another process moves them;
    ``CancelledJobError`` after ``relevo jobs cancel``.
    """
    found = await plan(database, target)
    if not found.steps:
        return None
    run = _Move(database, settings, found, actor, report)
    try:
        return await run.run(reason)
    finally:
        await asyncio.shield(database.run(run.leave()))


@dataclass
class _Move:
    database: Database
    settings: Settings
    plan: MovePlan
    actor: str
    report: Callable[[str], None]
    id: UUID = field(default_factory=uuid4)
    duty: Duty | None = None
    closed: bool = False
    marked: int = 0
    _job: Job | None = None
    _act: Act | None = None
    _renew_at: float = 0.0

    def __post_init__(self) -> None:
        work = (self._keep, lambda: duties.hold(self._duty()))
        self.wal = WalSide(self.database, self.settings, self.id, *work, self.report, self.lease_s)

    @property
    def lease_s(self) -> float:
        """How long relays are kept from their lanes after the last sign of life of this process: as they do it."""
        return self.settings.relay.lease_s

    async def run(self, reason: str) -> Moved:
        origin, target = self.plan.origin, self.plan.target
        await self._begin()
        self._act = Act(moving.KIND, self.actor, reason, {"from": origin, "to": target})
        self._job = await self._run(lambda: auditing.begin(self._act_(), rate=None, total=self.plan.rows))
        self.marked = self._job.done
        closed_s = 0.0
        if (await self._run(moving.stands)).source == origin:
            if target == "mark":
                self.report("setting the markers of what was handed over")
                await self._mark(int(self._job.cursor.get("after", 0)))
            if target == "wal":
                await self.wal.prepare()
            else:
                await self._index(indexes.build, target)
            if origin == "mark":
                await self._rebase()
            closed_s = await self._hand_over()
            self.report(f"the source is {target!r}: relays go on with it")
        if origin == "wal":
            await self.wal.tidy()
        else:
            await self._index(indexes.remove, origin)
        await self._run(lambda: auditing.finish(self._job_().job_id))
        return Moved(origin, target, self.marked, closed_s)

    def leave(self) -> Script[None]:
        """Whatever happened: relays have their lanes again, unless by now another process moves these tables."""
        if self.duty is not None:
            try:
                yield from duties.hold(self.duty)
            except LostOwnershipError:
                return
            yield from moving.reopen()
            yield from duties.leave(self.id)

    async def _mark(self, after: int | None) -> None:
        while after is not None:
            await self._keep()
            page = await self._run(partial(self._page, after))
            self.marked += page.marked
            after = page.last if page.seen == BATCH else None
            probe("source.prepared")

    def _page(self, after: int) -> Script[Marked]:
        """One page of markers, and where it ended, in one transaction."""
        yield from self._still_wanted()
        page = yield from moving.mark(self.database.dialect, after, BATCH)
        if not self.closed:  # what is looked at with the relays away is looked at again by a next run
            cursor = {"after": page.last if page.last is not None else after}
            yield from auditing.advance(self._job_().job_id, cursor=cursor, done=page.marked)
        return page

    async def _rebase(self) -> None:
        count, total = BATCH, 0
        while count == BATCH:
            await self._keep()
            count = await self._run(lambda: moving.rebase(BATCH))
            total += count
        if total:
            self.report(f"{total:,} rows come from another cluster: they have an xid of the past now")

    async def _hand_over(self) -> float:
        """Relays let go, the last markers are set, the source changes. Returns for how long nobody read."""
        for _ in range(TRIES):
            await self._close()
            probe("source.closed")
            since = boottime_s()
            epochs = await self._free()
            try:
                found = await self._look(epochs)
                await self._keep()
                await self.database.run(self._switch(epochs, found), idle_timeout_s=self.lease_s / 3)
            except (LostOwnershipError, LiveKeysError, UnreachableError) as error:
                if (await self._run(moving.stands)).source != self.plan.target:  # else the reply to its commit was lost
                    self.report(f"{error}: once more")
                    await asyncio.sleep(LOOK_S)
                    continue
            self.closed = False
            probe("source.switched")
            return boottime_s() - since
        raise LostOwnershipError("relays take lanes all the time: is one of an older version among them?")

    async def _look(self, epochs: Mapping[int, int]) -> Entry | Exit | None:
        """No relay owns a lane: the last markers, and where the target begins."""
        origin, target = self.plan.origin, self.plan.target
        if origin == "wal":
            found, self.marked = await self.wal.settle_rest(target, self.marked)
            return found
        await self._mark(0 if target == "mark" else None)
        return await self.wal.look_over(origin, partial(self._alone, epochs)) if target == "wal" else None

    def _alone(self, epochs: Mapping[int, int]) -> Script[None]:
        """First in a transaction: this run still moves the tables, and no relay owns a lane or did since ``epochs``."""
        yield from duties.hold(self._duty())
        yield from moving_wal.alone(epochs)

    async def _close(self) -> None:
        if not await self._run(lambda: moving.close(self.plan.origin, self.lease_s)):
            raise LostOwnershipError("another process changed the source meanwhile: nothing more was done here")
        if not self.closed:
            self.report("relays let go of their lanes")
        self.closed = True

    async def _free(self) -> Mapping[int, int]:
        """The epochs of the lanes, when nobody owns one. A relay that died is waited for until its lease ran out."""
        said = ""
        while True:
            await self._keep()
            epochs, owned = await self._run(moving.lanes)
            relays = await self._run(moving.relays)
            old = [relay.name for relay in relays if relay.source is None]
            if not owned and not old:
                return epochs
            text = f"waiting for {owned} lanes: " + ", ".join(relay.name for relay in relays if relay.lanes)
            if old:
                text = (
                    f"stop or upgrade these relays, they are of a version that knows nothing of moves: {', '.join(old)}"
                )
            if text != said:
                self.report(text)
                said = text
            await asyncio.sleep(LOOK_S)

    def _switch(self, epochs: Mapping[int, int], found: Entry | Exit | None) -> Script[None]:
        yield from duties.hold(self._duty())
        yield from self._still_wanted()
        place, way = found.place if found is not None else None, (self.plan.origin, self.plan.target)
        yield from moving.switch(self.database.dialect, *way, epochs, place)
        yield from self.wal.switch(found)
        yield from auditing.record(self._act_(), self.marked, job_id=self._job_().job_id)
        probe("source.switching")

    def _still_wanted(self) -> Script[None]:
        if not (yield from auditing.running(self._job_().job_id)):
            raise CancelledJobError(
                "the move was cancelled: the source is what it was, and markers that were set are true (or another "
                "process has ended it)"
            )

    async def _index(self, act: indexes.Act, source: str) -> None:
        await indexes.in_thread(act, self.settings, source, self.report, self._keep, self.lease_s / 3)

    async def _begin(self) -> None:
        """Take the duty. A run that was killed has it until its lease is over: wait so long."""
        until = boottime_s() + self.lease_s + 1.0
        while True:
            try:
                return await self._keep()
            except LostOwnershipError:
                if boottime_s() > until:
                    raise
            self._renew_at = 0.0
            await asyncio.sleep(LOOK_S)

    async def _keep(self) -> None:
        """Renew what is ours: the duty, and that relays stay away."""
        if boottime_s() < self._renew_at:
            return
        self._renew_at = boottime_s() + self.lease_s / 3
        self.duty = await self._run(lambda: duties.take(duties.MOVE, self.id, self.lease_s))
        if self.duty is None:
            raise LostOwnershipError("another process is moving these tables: nothing more was done here")
        if self.closed:
            await self._close()

    async def _run(self, script: Callable[[], Script[T]]) -> T:
        """A deadlock or a moment without the database is no reason to give up; what lasts is."""
        for attempt in range(TRIES):
            try:
                return await self.database.run(script())
            except Exception as error:
                if attempt == TRIES - 1 or not is_transient(error):
                    raise
                await asyncio.sleep(LOOK_S)
        raise AssertionError

    def _duty(self) -> Duty:
        assert self.duty is not None
        return self.duty

    def _job_(self) -> Job:
        assert self._job is not None
        return self._job

    def _act_(self) -> Act:
        assert self._act is not None
        return self._act
