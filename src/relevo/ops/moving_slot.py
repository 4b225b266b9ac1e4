"""The slot in the hands of a move: its position taken from relays, its stream read, emptied and removed.

Whatever is dropped here is dropped in a transaction that holds the move's duty (``hold``): a run that stood still while
another one ended the move, and perhaps began the next, finds that out before it touches a slot that relays read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from relevo.errors import LostOwnershipError
from relevo.ops import slot as slots
from relevo.ports.database import Database
from relevo.ports.source import Disposition
from relevo.runtime.probes import probe
from relevo.script import Script, after
from relevo.settings import Settings
from relevo.sources.wal.stream import Chunk
from relevo.sources.wal.tail import Take, read_tail
from relevo.storage import moving_wal as steps
from relevo.storage import slotting, waling
from relevo.storage.marking import PAUSED
from relevo.storage.moving_wal import Taken
from relevo.storage.waling import Aside, Position, Stored

LOOK_S = 0.2
HOLD = Disposition("hold", "read from the log: the source was moved", PAUSED)


@dataclass
class MovedSlot:
    """``keep``: renews what the move has in hand; called all the time. ``hold``: first in a transaction, raises
    ``LostOwnershipError`` where the move is another run's by now. ``id``: of the run."""

    database: Database
    settings: Settings
    id: UUID
    keep: Callable[[], Awaitable[None]]
    hold: Callable[[], Script[None]]
    report: Callable[[str], None]
    lease_s: float
    slot: str = ""

    async def tidy(self) -> None:
        """The source is another: what was emitted meanwhile becomes rows, and the slot goes, for it fills the disk."""
        await self._name()
        await self._empty()
        probe("source.tidied")
        await slots.remove(self.database, self.hold)
        self.report(f"the slot {self.slot} is dropped, and its publication")

    async def _empty(self) -> None:
        """What stands in the log alone behind the position becomes rows, when nobody can add to it any more."""
        slot = await self.database.run(slotting.find(self.slot), read_only=True)
        if slot is None or await self.database.run(waling.stored(self.slot), read_only=True) is None:
            return
        if slot.status == "lost" or slot.invalid:
            self.report(f"the slot {self.slot} is lost: what was emitted without a table and not read went with it")
            return
        await self._locking(after(self.hold(), steps.publish(steps.CLOSED)))
        await self._until_ended(sessions=True)
        taken = await self._take()

        async def write(chunk: Chunk, position: Position) -> None:
            await self._locking(self._written(taken, position, chunk))

        await self._read_taken(taken, write)

    def _written(self, taken: Taken, position: Position, chunk: Chunk) -> Script[None]:
        # Rows, those too that cannot be read, stand in the table: whoever reads it knows what to do with them.
        bare = [index for index, seq in enumerate(chunk.seqs) if seq <= 0 and index not in chunk.broken_rows]
        broken = [index for index in bare if index in chunk.unreadable]
        asides = asides_of(chunk, broken)
        yield from waling.save(taken.slot, taken.holder, taken.epoch, position, asides)
        yield from steps.append([chunk.messages[index] for index in bare if index not in chunk.unreadable])

    async def _locking(self, script: Script[None]) -> None:
        """Frozen inside, this process must lose its locks: relays would skip the lanes for ever (HARD 2)."""
        await self.database.run(script, idle_timeout_s=self.lease_s / 3)

    async def _read_taken(self, taken: Taken, take: Take) -> int:
        stored = await self.database.run(waling.stored(self.slot), read_only=True)
        if stored is None:
            raise LostOwnershipError(f"the position of {self.slot} is gone: somebody dropped the slot meanwhile")
        end = partial(slotting.terminate_former, self.slot, taken.holder, taken.epoch)
        return await self._read(stored, take, end)

    async def _read(
        self, stored: Stored, take: Take, end: Callable[[], Script[None]], xids: dict[int, int] | None = None
    ) -> int:
        where = self.settings.database
        return await read_tail(self.database, where, self.slot, stored, take, self.keep, end, xids=xids)

    async def _name(self) -> None:
        """Whoever is called from outside asks first: only the database knows how the slot is called."""
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

    async def _until_ended(self, *, sessions: bool = False) -> None:
        """Until every transaction that runs now and has written has ended. ``sessions``: and every other that sees the
        database as it was, for such a one may be about to emit an event by what it sees."""
        newest = await self.database.run(steps.newest())
        told = False
        while await self._runs(newest, sessions):
            await self.keep()
            if not told:
                self.report("waiting for transactions that are open now")
                told = True
            await asyncio.sleep(LOOK_S)

    async def _runs(self, newest: int, sessions: bool) -> bool:
        if await self.database.run(steps.xmin(), read_only=True) <= newest:
            return True
        return sessions and await self.database.run(steps.older(newest), read_only=True) > 0


def asides_of(chunk: Chunk, indexes: Sequence[int]) -> list[Aside]:
    """Held as they are: what cannot be read as that, all else until a relay drains its key."""
    return [Aside(index, chunk.seqs[index], chunk.messages[index], _fate(chunk, index)) for index in indexes]


def _fate(chunk: Chunk, index: int) -> Disposition:
    why = chunk.unreadable.get(index)
    return HOLD if why is None else Disposition("hold", why, "unreadable")
