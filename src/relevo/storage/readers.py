"""Readers of the outbox's log: which rows are read next, for whom, and where a cursor stands after them. Pure, no IO.

A cursor ``(snapshot s1, high water hw)`` says: every row up to ``hw`` that is visible in ``s1`` is settled. A window
goes from ``s1`` to a newer snapshot ``s2``: its *late* rows (``seq <= hw``, visible in ``s2`` and not in ``s1``), then
its *main* rows (``seq > hw``, visible in ``s2``), both in ``seq`` order. A page closes its window: ``s1 := s2``,
``hw :=`` its last ``seq``. So nobody's rows wait behind a backlog or an open transaction, and a restart needs the
cursor alone.

Several lanes with an equal cursor are read by one query, a ``Reader``; readers live in memory, cursors belong to
lanes. The source ``log`` settles whole pages (``sources/log/windows.py``), a group of consumers each lane by itself
(``brokers/postgres/lane.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from relevo.script import Row, Rows, Script
from relevo.storage.cursors import Cursor

Name = tuple[int, str]
"""A lane and a topic group."""

NO_CAP = 2**63 - 1
NEAR = 50_000
"""How far behind (in ``seq``) a reader may be for others to wait for it."""


ROUNDS = 3
"""In one page readers first meet where the foremost stands, then go on as one."""


@dataclass(eq=False, slots=True)
class Reader:
    """Lanes that stand at one place. ``without``: topics that have a group of their own in these lanes.
    ``exhausted``: nothing further was visible in ``cursor.snapshot``."""

    group: str
    without: frozenset[str]
    lanes: set[int]
    cursor: Cursor
    exhausted: bool = False


@dataclass(eq=False, slots=True)
class Part:
    """What one reader read for one page, in ``seq`` order. ``after``: the cursor when all of it is settled."""

    group: str
    lanes: frozenset[int]
    seqs: Sequence[int]
    before: Cursor
    window: str
    after: Cursor
    void: bool = False
    """Something before it was not settled: its rows may be, its cursor does not move."""

    def at(self, count: int) -> Cursor:
        """The cursor once the first ``count`` rows are settled and the next is not."""
        if count >= len(self.seqs):
            return self.after
        if count == 0:
            return self.before
        last, high_water = self.seqs[count - 1], self.before.high_water
        if self.seqs[count] <= high_water:  # in the middle of late rows: the window stays open
            return Cursor(self.before.snapshot, high_water, self.window, last)
        return Cursor(self.window, max(high_water, last))


@dataclass
class Readers:
    """The readers of one process. Not for two tasks at once."""

    readers: list[Reader] = field(default_factory=list)
    _first: int = field(default=0, init=False)

    def due(self, s2: str, paused: Collection[str] = ()) -> list[Reader]:
        """Who has something to read at ``s2``, a different one first each time. A reader that is not exhausted (a new
        owner cannot know) reads on even where nothing was committed since."""
        self._first += 1
        turn = self._first % max(1, len(self.readers))
        return [
            reader
            for reader in self.readers[turn:] + self.readers[:turn]
            if reader.group not in paused and not (reader.exhausted and reader.cursor.snapshot == s2)
        ]

    def follower(self) -> Reader | None:
        """The one reader there is, if there is one and it had read everything that was there."""
        only = self.readers[0] if len(self.readers) == 1 else None
        return only if only is not None and only.exhausted else None

    def cap(self, reader: Reader) -> int:
        """How far ``reader`` reads in its next page: where others of its kind are near, to where the foremost stands,
        the foremost itself included. Then all stand at one place, and go on as one, whatever the backlog behind. One
        that is far behind keeps nobody waiting."""
        fore = max(other.cursor.high_water for other in self.readers if self._alike(reader, other))
        if reader.cursor.high_water < fore:
            return fore
        near = (each for each in self.readers if each is not reader and self._alike(reader, each))
        return fore if any(fore - each.cursor.high_water <= NEAR for each in near) else NO_CAP

    def advance(self, reader: Reader, s2: str, seqs: Sequence[int], *, full: bool, cap: int, top: int) -> Part:
        """``reader`` read ``seqs`` up to ``cap``; ``full``: the page's limits cut it. ``top``: the newest row seen at
        ``s2``, so that an exhausted reader need not walk again what belongs to others."""
        before = reader.cursor
        window = before.window or s2
        last = seqs[-1] if seqs else 0
        if full and last <= before.high_water:
            after = Cursor(before.snapshot, before.high_water, window, last)
        elif full:
            after = Cursor(window, last)
        elif cap != NO_CAP:
            after = Cursor(window, cap)
        else:
            after = Cursor(window, max(before.high_water, last, top if window == s2 else 0))
        reader.cursor, reader.exhausted = after, not full and cap == NO_CAP
        return Part(reader.group, frozenset(reader.lanes), seqs, before, window, after)

    def drop(self, lanes: Iterable[int]) -> None:
        """Read these lanes no more."""
        gone = set(lanes)
        for reader in self.readers:
            reader.lanes -= gone
        self.readers = [reader for reader in self.readers if reader.lanes]

    def meet(self) -> list[Reader]:
        """Make one reader of those that stand at one place, and of those that are exhausted at one snapshot: both have
        everything visible in it behind them, so either high water is true of both. Nothing else may merge (HARD 4).
        Returns those that took others in, once for each."""
        grown: list[Reader] = []
        merged: list[Reader] = []
        for reader in self.readers:
            for other in merged:
                if self._alike(reader, other) and self._may_merge(reader, other):
                    high_water = max(reader.cursor.high_water, other.cursor.high_water)
                    other.cursor = Cursor(other.cursor.snapshot, high_water)
                    other.exhausted = other.exhausted and reader.exhausted
                    other.lanes |= reader.lanes
                    grown.append(other)
                    break
            else:
                merged.append(reader)
        self.readers = merged
        return grown

    def _may_merge(self, one: Reader, other: Reader) -> bool:
        if one.cursor.window is not None or other.cursor.window is not None:
            return False
        if one.cursor == other.cursor:
            return True
        return one.exhausted and other.exhausted and one.cursor.snapshot == other.cursor.snapshot

    def _alike(self, one: Reader, other: Reader) -> bool:
        return one.group == other.group and one.without == other.without


def size_of(page: Rows) -> int:
    """Payload bytes: its last row says how many they were so far."""
    return int(page[-1][-1]) if page else 0


def is_full(page: Rows, room: int, room_bytes: int) -> bool:
    """Whether it may have been cut by its limits."""
    return len(page) >= room or size_of(page) >= room_bytes


def sweep(
    readers: Readers,
    s2: str,
    paused: Collection[str],
    limits: tuple[int, int],
    page: Callable[[Reader, int, int, int], Script[Rows]],
    read: Callable[[Reader, Rows, bool, int], None],
    merge: Callable[[], None],
) -> Script[list[Row]]:
    """One page of several readers at ``s2``: one that has little leaves room for the next. ``limits``: messages and
    bytes. ``page(reader, cap, messages, bytes)`` reads; ``read(reader, rows, full, cap)`` is told what was read."""
    room, room_bytes = limits
    found: list[Row] = []
    for _ in range(ROUNDS):
        for reader in readers.due(s2, paused):
            if room <= 0 or room_bytes <= 0:
                break
            cap = readers.cap(reader)
            rows = yield from page(reader, cap, room, room_bytes)
            read(reader, rows, is_full(rows, room, room_bytes), cap)
            found += rows
            room -= len(rows)
            room_bytes -= size_of(rows)
        merge()
    return found
