"""The part of a move that leads into or out of ``wal``: what the slot delivers and the table shows, put together.

**Into** ``wal``. The slot is made while relays read on; it delivers whatever commits after its first point, C. Then
every transaction that ran when it was made is waited for: so every row that committed before C is visible from there
on. When no relay owns a lane, a snapshot s is taken, and the stream is read from C up to R. What committed before R
is what s shows, and those transactions of the stream that s does not show, told by their xids. The first are settled
by the origin, or copied to their keys' queues, with their markers, as a relay holds a message: true under any source,
so that a move that dies here has harmed nothing. The others nobody can have read; they are copied from the stream, in
the transaction that changes the source and sets the position to R.

**Out of** ``wal``. The position is taken, with a new epoch, so that not even a relay that was frozen can move it. It
says what is settled. Then a snapshot s, then the stream from the position up to R: the rows it delivers are the ones
that are not settled. All else that s shows is: whatever s shows had committed, and was flushed, before R. So ``mark``
gets markers for what s shows and the stream did not deliver, and ``log`` gets a cursor of s below the first row that
it did deliver, and markers above. A transaction whose commit was read by a relay before others could see it, and is
not visible in s seconds later (it waits for a synchronous standby), is sent a second time: the safe side.

Events without a table are in the log alone. If there are any up to R, everything up to R is held, in the order of the
stream. What a transaction that was open during the switch emits is written to the outbox afterwards, when all such
transactions have ended; then slot, position and publication go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from relevo.ops import slot as slots
from relevo.ops.moving_slot import MovedSlot, asides_of
from relevo.runtime.probes import probe
from relevo.script import Script, after
from relevo.sources.wal.stream import Chunk
from relevo.storage import moving_wal as steps
from relevo.storage import slotting, waling
from relevo.storage.cursors import snapshot as parsed
from relevo.storage.moving_wal import Taken
from relevo.storage.waling import Aside, Position, Stored

SEQS = 100_000
COPIES = 1_000
MARKS = 2_000


@dataclass(frozen=True, slots=True)
class Entry:
    """What the switch into ``wal`` stores. ``place``: a snapshot and a number, up to which all it shows is settled or
    held."""

    place: tuple[str, int]
    start: int
    reached: int
    system: tuple[str, int]
    asides: Sequence[Aside]


@dataclass(frozen=True, slots=True)
class Exit:
    """What the switch out of ``wal`` goes by. ``unsettled``: ascending; all else that the snapshot shows is settled.
    ``asides``: to be held in the switch; without one, what is unsettled is left to be read."""

    taken: Taken
    snapshot: str
    reached: int
    unsettled: Sequence[int]
    top: int
    asides: Sequence[Aside] = ()

    @property
    def place(self) -> tuple[str, int]:
        return self.snapshot, self.unsettled[0] - 1 if self.unsettled else self.top


@dataclass
class WalSide(MovedSlot):
    """One move into or out of ``wal``."""

    _start: int = 0
    _system: tuple[str, int] = field(default=("", 0))

    async def prepare(self) -> None:
        """Publication and slot, both new, while relays read on; and wait for what ran before."""
        await self._name()
        await self._empty()  # of a move out of ``wal`` that was given up
        self.report(f"making the slot {self.slot}: that waits for transactions that run now")
        making = asyncio.create_task(slots.make_new(self.database, self.settings, self.hold))
        try:
            while not (await asyncio.wait((making,), timeout=self.lease_s / 3))[0]:
                await self.keep()
        except BaseException:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            raise
        self._start, self._system = await making
        await self._until_ended()
        probe("source.prepared")

    async def look_over(self, origin: str, alone: Callable[[], Script[None]]) -> Entry:
        """No relay owns a lane, as ``alone`` proves: hold what is not settled, and find where the stream begins."""
        place = await self.database.run(steps.look(), read_only=True)
        xids: dict[int, int] = {}
        late: list[Aside] = []
        shown = parsed(place[0])

        async def take(chunk: Chunk, _: Position) -> None:
            unseen = [not shown.shows(_whole(xids[mark[0]], shown.xmax)) for mark in chunk.marks]
            late.extend(asides_of(chunk, [index for index, hidden in enumerate(unseen) if hidden]))

        stored = Stored(*self._system, Position(self._start), 0, None)
        reached = await self._read(stored, take, partial(slotting.terminate, self.slot), xids)
        passed, count, held = -(2**63), SEQS, 0
        while count == SEQS:
            await self.keep()
            seqs = await self.database.run(steps.unsettled(origin, place[0], passed, SEQS), read_only=True)
            count = len(seqs)
            for first in range(0, count, COPIES):
                await self.keep()
                await self._locking(after(alone(), steps.copy(seqs[first : first + COPIES])))
                probe("source.held")
            passed, held = (seqs[-1] if seqs else passed), held + count
        if held or late:
            self.report(f"{held + len(late):,} messages wait: they are held, and sent before anything newer")
        return Entry(place, self._start, reached, self._system, late)

    def switch(self, found: Entry | Exit | None) -> Script[None]:
        """In the transaction that changes the source."""
        if isinstance(found, Entry):
            system, asides = found.system, found.asides
            yield from steps.enter(self.slot, self.id, system, found.start, found.reached, asides)
        elif found is not None:
            yield from steps.leave(found.taken, found.reached, found.asides)

    async def settle_rest(self, target: str, marked: int) -> tuple[Exit, int]:
        """No relay owns a lane: the markers that ``target`` needs; ``marked`` and how many they were."""
        left = await self._look_back()
        passed: int | None = -(2**63) if target == "mark" else left.place[1]
        while passed is not None:
            await self.keep()
            page = await self.database.run(steps.mark(passed, left.top, MARKS, left.snapshot, left.unsettled))
            marked += page.marked
            passed = page.last if page.seen == MARKS else None
            probe("source.held")
        return left, marked

    async def _look_back(self) -> Exit:
        """Find out what is not settled. With an event that stands in no table everything is held, in its order: most
        of it here, what comes meanwhile in the switch."""
        await self._name()
        while True:
            taken = await self._take()
            snapshot, top = await self.database.run(steps.look(), read_only=True)
            rest = _Rest()
            reached = await self._read_taken(taken, rest.take)
            if not rest.bare or rest.count == len(rest.first):
                return Exit(taken, snapshot, reached, sorted(rest.seqs), top, rest.first if rest.bare else ())
            self.report("events without a table stand in the log: what waits is held, in its order")
            await self._read_taken(taken, partial(self._hold_all, taken))

    async def _hold_all(self, taken: Taken, chunk: Chunk, position: Position) -> None:
        asides = asides_of(chunk, range(len(chunk.seqs)))
        await self._locking(waling.save(self.slot, self.id, taken.epoch, position, asides))
        probe("source.held")


@dataclass
class _Rest:
    """What no relay has settled. ``first``: about so much of it as may be held in one transaction."""

    seqs: list[int] = field(default_factory=list)
    first: list[Aside] = field(default_factory=list)
    count: int = 0
    bare: bool = False

    async def take(self, chunk: Chunk, _: Position) -> None:
        if self.count < COPIES:
            self.first += asides_of(chunk, range(len(chunk.seqs)))
        self.count += len(chunk.seqs)
        self.bare = self.bare or any(seq <= 0 for seq in chunk.seqs)
        self.seqs += [seq for seq in chunk.seqs if seq > 0]


def _whole(xid: int, near: int) -> int:
    """All 64 bits of an xid of which the stream tells 32: ``near`` is one of about the same time."""
    whole = (near & ~0xFFFFFFFF) | xid
    if whole >= near + 2**31:
        return whole - 2**32
    return whole + 2**32 if whole < near - 2**31 else whole
