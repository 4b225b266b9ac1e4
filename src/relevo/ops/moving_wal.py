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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from relevo.errors import LostOwnershipError
from relevo.ops import slot as slots
from relevo.outgoing import Sendable
from relevo.ports.database import Database
from relevo.ports.source import Disposition
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.settings import Settings
from relevo.sources.wal.stream import Chunk
from relevo.sources.wal.tail import Take, read_tail
from relevo.storage import moving_wal as steps
from relevo.storage import slotting, waling
from relevo.storage.cursors import snapshot as parsed
from relevo.storage.marking import PAUSED
from relevo.storage.moving_wal import Taken
from relevo.storage.waling import Aside, Position

SEQS = 100_000
COPIES = 1_000
MARKS = 2_000
LOOK_S = 0.2
HOLD = Disposition("hold", "read from the log: the source was moved", PAUSED)


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
    """What the switch out of ``wal`` goes by. ``unsettled``: ascending; all else that the snapshot shows is settled."""

    taken: Taken
    snapshot: str
    reached: int
    unsettled: Sequence[int]
    top: int

    @property
    def place(self) -> tuple[str, int]:
        return self.snapshot, self.unsettled[0] - 1 if self.unsettled else self.top


@dataclass
class WalSide:
    """``keep``: renews what the move has in hand; called all the time. ``id``: of the run."""

    database: Database
    settings: Settings
    id: UUID
    keep: Callable[[], Awaitable[None]]
    report: Callable[[str], None]
    lease_s: float
    slot: str = ""
    _start: int = 0
    _system: tuple[str, int] = field(default=("", 0))

    async def prepare(self) -> None:
        """Publication and slot, both new, while relays read on; and wait for what ran before."""
        await self._name()
        self.report(f"making the slot {self.slot}: that waits for transactions that run now")
        making = asyncio.create_task(slots.make_new(self.database, self.settings))
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

    async def look_over(self, origin: str) -> Entry:
        """No relay owns a lane: hold what is not settled, and find out where the stream is to begin."""
        place = await self.database.run(steps.look(), read_only=True)
        xids: dict[int, int] = {}
        late: list[Aside] = []
        shown = parsed(place[0])

        async def take(chunk: Chunk, _: Position) -> None:
            for index, (seq, message, mark) in enumerate(zip(chunk.seqs, chunk.messages, chunk.marks, strict=True)):
                if not shown.shows(_whole(xids[mark[0]], shown.xmax)) or seq <= 0:
                    late.append(Aside(index, seq, message, _fate(chunk, index)))

        reached = await self._read(Position(self._start), take, partial(slotting.terminate, self.slot), xids)
        after, count, held = -(2**63), SEQS, 0
        while count == SEQS:
            await self.keep()
            seqs = await self.database.run(steps.unsettled(origin, place[0], after, SEQS), read_only=True)
            count = len(seqs)
            for first in range(0, count, COPIES):
                await self.keep()
                await self.database.run(steps.copy(seqs[first : first + COPIES]))
                probe("source.prepared")
            after, held = (seqs[-1] if seqs else after), held + count
        if held or late:
            self.report(f"{held + len(late):,} messages wait: they are held, and sent before anything newer")
        return Entry(place, self._start, reached, self._system, late)

    def switch(self, found: Entry | Exit | None) -> Script[None]:
        """In the transaction that changes the source."""
        if isinstance(found, Entry):
            system, asides = found.system, found.asides
            yield from steps.enter(self.slot, self.id, system, found.start, found.reached, asides)
        elif found is not None:
            yield from steps.leave(found.taken, found.reached)

    async def settle_rest(self, target: str, marked: int) -> tuple[Exit, int]:
        """No relay owns a lane: the markers that ``target`` needs; ``marked`` and how many they were."""
        left = await self._look_back()
        after: int | None = -(2**63) if target == "mark" else left.place[1]
        while after is not None:
            await self.keep()
            page = await self.database.run(steps.mark(after, MARKS, left.snapshot, left.unsettled))
            marked += page.marked
            after = page.last if page.seen == MARKS else None
            probe("source.prepared")
        return left, marked

    async def _look_back(self) -> Exit:
        """Find out what is not settled."""
        await self._name()
        taken = await self._take()
        snapshot, top = await self.database.run(steps.look(), read_only=True)
        seqs: list[int] = []
        bare = False

        async def take(chunk: Chunk, _: Position) -> None:
            nonlocal bare
            bare = bare or any(seq <= 0 for seq in chunk.seqs)
            seqs.extend(seq for seq in chunk.seqs if seq > 0)

        reached = await self._read_taken(taken, take)
        if not bare:
            return Exit(taken, snapshot, reached, sorted(seqs), top)

        async def hold(chunk: Chunk, position: Position) -> None:
            asides = [
                Aside(index, seq, message, _fate(chunk, index))
                for index, (seq, message) in enumerate(zip(chunk.seqs, chunk.messages, strict=True))
            ]
            await self.database.run(waling.save(self.slot, self.id, taken.epoch, position, asides))
            probe("source.prepared")

        self.report("events without a table stand in the log: what waits is held, in its order")
        await self._read_taken(taken, hold)
        return await self._look_back()

    async def tidy(self) -> None:
        """The source is another: what was emitted meanwhile becomes rows, and the slot goes, for it fills the disk."""
        await self._name()
        slot = await self.database.run(slotting.find(self.slot), read_only=True)
        stored = await self.database.run(waling.stored(self.slot), read_only=True)
        if slot is not None and stored is not None:
            await self._until_ended()
            taken = await self._take()

            async def write(chunk: Chunk, position: Position) -> None:
                bare = [message for seq, message in zip(chunk.seqs, chunk.messages, strict=True) if seq <= 0]
                await self.database.run(self._written(taken, position, bare))

            await self._read_taken(taken, write)
        probe("source.tidied")
        await slots.remove(self.database)
        self.report(f"the slot {self.slot} is dropped, and its publication")

    def _written(self, taken: Taken, position: Position, bare: Sequence[Sendable]) -> Script[None]:
        yield from waling.save(taken.slot, taken.holder, taken.epoch, position)
        yield from steps.append(bare)

    async def _read_taken(self, taken: Taken, take: Take) -> int:
        end = partial(slotting.terminate_former, self.slot, taken.holder, taken.epoch)
        return await self._read(taken.position, take, end)

    async def _read(
        self, start: Position, take: Take, end: Callable[[], Script[None]], xids: dict[int, int] | None = None
    ) -> int:
        where = self.settings.database
        return await read_tail(self.database, where, self.slot, start, take, self.keep, end, xids=xids)

    async def _name(self) -> None:
        if not self.slot:
            self.slot = await self.database.run(slotting.slot_name(), read_only=True)

    async def _take(self) -> Taken:
        """When nobody reads; who died is waited for until its lease is over."""
        while True:
            await self.keep()
            taken = await self.database.run(steps.take(self.slot, self.id, self.lease_s))
            if taken is not None:
                return taken
            if await self.database.run(waling.stored(self.slot), read_only=True) is None:
                raise LostOwnershipError(f"the position of {self.slot} is gone: somebody dropped the slot meanwhile")
            await asyncio.sleep(LOOK_S)

    async def _until_ended(self) -> None:
        """Until every transaction that runs now has ended."""
        newest = await self.database.run(steps.newest())
        told = False
        while await self.database.run(steps.xmin(), read_only=True) <= newest:
            await self.keep()
            if not told:
                self.report("waiting for transactions that are open now")
                told = True
            await asyncio.sleep(LOOK_S)


def _fate(chunk: Chunk, index: int) -> Disposition:
    why = chunk.unreadable.get(index)
    return HOLD if why is None else Disposition("hold", why, "unreadable")


def _whole(xid: int, near: int) -> int:
    """All 64 bits of an xid of which the stream tells 32: ``near`` is one of about the same time."""
    whole = (near & ~0xFFFFFFFF) | xid
    if whole >= near + 2**31:
        return whole - 2**32
    return whole + 2**32 if whole < near - 2**31 else whole
