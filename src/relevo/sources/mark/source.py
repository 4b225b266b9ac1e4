"""The source ``mark``: reads what is unsettled, marks what was settled. For every database Relevo knows."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from relevo.clients.sqlstate import sqlstates
from relevo.ports.database import Database
from relevo.ports.source import Disposition, Settled, SourceCapabilities, Taken
from relevo.script import Rows
from relevo.sources.mark.floor import Floor
from relevo.storage import marking
from relevo.storage.marking import Marked
from relevo.storage.rows import page_reader

log = logging.getLogger("relevo.relay")

LOCK_TIMEOUT_S: Final = 1.0
"""A page waits so long for a row that somebody else holds locked, and then goes on without it."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
NOTHING = Taken((), (), (), exhausted=True)


class MarkSource:
    """The ``Source`` port on the outbox table's ``settled_at``.

    A page never repeats what an earlier one has in flight. Pages are bounded by count and by payload bytes, so memory
    does not depend on the backlog.
    """

    capabilities = SourceCapabilities(lanes=True, history=True)

    def __init__(self, database: Database, holder: UUID, lane_count: int, *, lease_s: float) -> None:
        self._database = database
        self._holder = holder
        self._lane_count = lane_count
        self._idle_timeout_s = lease_s / 2
        self._lock_timeout_s = min(LOCK_TIMEOUT_S, lease_s / 6)
        self._owed: dict[int, int] = {}
        """Lane by ``seq`` of what was sent and is not marked: somebody holds the row locked."""
        self._owed_due = 0.0
        self._lanes: dict[int, int] = {}
        self._without: frozenset[str] = frozenset()
        self._in_flight: dict[int, tuple[int, ...]] = {}
        self._after = 0
        self._floor = Floor()
        self._horizon = 0
        self._empty = False
        self._read = page_reader(database.dialect)
        self._fills_buckets = database.dialect == "sqlite"  # its view cannot compute SHA-256

    async def assign(self, lanes: Mapping[int, int]) -> None:
        kept = {lane for lane, epoch in lanes.items() if self._lanes.get(lane) == epoch}
        self._owed = {seq: lane for seq, lane in self._owed.items() if lane in kept}
        self._lanes = dict(lanes)
        self._start_over()

    async def take(self, max_messages: int, max_bytes: int, *, without_topics: Collection[str] = ()) -> Taken:
        if not self._lanes:
            return NOTHING
        without = frozenset(without_topics)
        if without != self._without:
            self._without = without
            self._start_over()
        if self._fills_buckets and await self._database.run(marking.unbucketed(), read_only=True):
            await self._database.run(marking.fill_buckets())
        if self._owed and time.monotonic() >= self._owed_due:
            await self._pay()
        flying = [*self._owed, *(seq for seqs in self._in_flight.values() for seq in seqs)]
        xmin = await self._look() if self._empty and (self._without or len(self._lanes) < self._lane_count) else None
        rows = await self._database.run(
            marking.take(
                self._holder,
                self._lanes,
                self._lane_count,
                floor=self._floor.seq,
                after=self._after,
                in_flight=flying,
                messages_max=max_messages,
                bytes_max=max_bytes,
                without=self._without,
            ),
            read_only=True,
        )
        self._empty = not rows
        if xmin is not None and not rows:
            self._floor.read(xmin, flying)
        known = set(flying)
        return self._taken([row for row in rows if row[0] not in known], flying, max_messages)

    async def _look(self) -> int:
        """Before a page that may be empty: let the floor pass what is not for us, so that the next poll need not walk
        it again. Returns the ``xmin`` to judge an empty page by: of a snapshot that is older than the page's."""
        seq, xmin, xid = await self._database.run(
            marking.horizon(self._database.dialect, self._floor.seq, self._horizon), read_only=True
        )
        if seq > self._horizon:
            self._horizon = seq
            self._floor.settled(seq, xid)
        return xmin

    async def settle(self, taken: Taken, dispositions: Mapping[int, Disposition]) -> Settled:
        return await self._land((taken,), taken, dispositions)

    async def settle_all(self, pages: Sequence[Taken]) -> Settled:
        if len(pages) == 1:
            return await self._land(pages, pages[0], {})
        seqs = [seq for page in pages for seq in page.seqs]
        lanes = [lane for page in pages for lane in page.lanes]
        return await self._land(pages, Taken(seqs, lanes, (), exhausted=False), {})

    async def _land(self, pages: Sequence[Taken], taken: Taken, dispositions: Mapping[int, Disposition]) -> Settled:
        """Settle ``taken``, which is all of ``pages``."""
        try:
            try:
                marked = await self._settle(taken, dispositions)
            except Exception as error:
                if _LOCK_NOT_AVAILABLE not in sqlstates(error):
                    raise
                marked = await self._settle(taken, dispositions, around_locks=True)
        except BaseException:
            for page in pages:
                self._release(page)
            raise
        settled = marked.settled
        if marked.owed:
            log.warning(
                "%d sent messages (from seq %d) cannot be marked: another session holds their rows locked, as pg_locks "
                "says. The relay goes on; they are marked when they are free",
                *(len(marked.owed), min(marked.owed)),
            )
            self._owed |= marked.owed
        for page in pages:
            if not settled.lost:
                self._floor.settled(page.seqs[-1], marked.xid)
            if dispositions or settled.lost:
                self._release(page)
            else:
                self._in_flight.pop(id(page), None)
        return settled

    async def _settle(
        self, taken: Taken, dispositions: Mapping[int, Disposition], *, around_locks: bool = False
    ) -> Marked:
        return await self._database.run(
            marking.settle(self._holder, self._lanes, taken, dispositions, around_locks=around_locks),
            idle_timeout_s=self._idle_timeout_s,
            lock_timeout_s=None if around_locks else self._lock_timeout_s,
        )

    async def _pay(self) -> None:
        """Mark what could not be marked before."""
        self._owed_due = time.monotonic() + LOCK_TIMEOUT_S
        owed = dict(self._owed)
        still = await self._database.run(
            marking.settle_owed(self._holder, self._lanes, owed), idle_timeout_s=self._idle_timeout_s
        )
        for seq in owed.keys() - still:
            self._owed.pop(seq, None)

    async def release(self, taken: Taken) -> None:
        self._release(taken)

    def _release(self, taken: Taken) -> None:
        if self._in_flight.pop(id(taken), None) is not None:
            self._after = min(self._after, taken.seqs[0] - 1)

    async def aclose(self) -> None:
        self._in_flight.clear()

    def _taken(self, rows: Rows, flying: list[int], max_messages: int) -> Taken:
        if not rows:
            if not self._in_flight:
                self._after = self._floor.seq
            return NOTHING
        seqs = [row[0] for row in rows]
        messages, unreadable = self._read(rows)
        taken = Taken(seqs, [row[1] for row in rows], messages, len(rows) < max_messages, unreadable)
        self._in_flight[id(taken)] = tuple(seqs)
        self._after = max(self._after, seqs[-1])
        self._floor.read(rows[0][-1], (seqs[0], *flying))
        return taken

    def _start_over(self) -> None:
        """Other lanes or topics than before: what was passed for them may be unsettled."""
        self._floor.reset()
        self._horizon, self._empty = 0, False
        if not self._in_flight or self._database.dialect == "sqlite":  # PostgreSQL's page looks below ``after`` anyway
            self._after = 0
