"""Snapshot windows: which rows are read next, and where the cursors stand once they are settled. Pure, no IO.

A cursor ``(snapshot s1, high water hw)`` says: every row up to ``hw`` that is visible in ``s1`` is settled. A window
goes from ``s1`` to a newer snapshot ``s2``: its *late* rows (``seq <= hw``, visible in ``s2`` and not in ``s1``), then
its *main* rows (``seq > hw``, visible in ``s2``), both in ``seq`` order. A page closes its window: ``s1 := s2``,
``hw :=`` its last ``seq``. So nobody's rows wait behind a backlog or an open transaction, and a restart needs the
cursor alone.

Several lanes with an equal cursor are read by one query, a ``Reader``; readers live in memory, cursors belong to (lane,
topic group). Pages may be in flight while the next is read: a reader's cursor is where it *reads* on, ``settled`` is
what may be stored. Whatever goes wrong with a page, reading starts again from ``settled``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relevo.storage.cursors import EVERY, Cursor

Name = tuple[int, str]
"""A lane and a topic group."""

NO_CAP = 2**63 - 1
NEAR = 50_000
"""How far behind (in ``seq``) a reader may be for others to wait for it."""


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
class Windows:
    """The readers of one relay. Not for two tasks at once, except that pages may be settled while the next is read."""

    settled: dict[Name, Cursor] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    flying: list[Part] = field(default_factory=list)
    behind: bool = False
    """Reading must start again from ``settled``: something that was read was not settled."""
    _first: int = 0

    def assign(self, cursors: Mapping[Name, Cursor]) -> None:
        """Read these lanes and groups, from these cursors, and no others."""
        self.settled = dict(cursors)
        for part in self.flying:
            part.void = True
        self.rewind()

    def rewind(self) -> None:
        """Read again from what is settled. Only while nothing is in flight, or with all of it void."""
        self.readers, self.behind = [], False
        for (lane, group), cursor in sorted(self.settled.items()):
            without = self._groups(lane) if group == EVERY else frozenset[str]()
            for reader in self.readers:
                if (reader.group, reader.without, reader.cursor) == (group, without, cursor):
                    reader.lanes.add(lane)
                    break
            else:
                self.readers.append(Reader(group, without, {lane}, cursor))

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

    def cap(self, reader: Reader) -> int:
        """How far ``reader`` reads in its next page: where others of its kind are near, to where the foremost stands,
        the foremost itself included. Then all stand at one place, and go on as one, whatever the backlog behind. One
        that is far behind keeps nobody waiting."""
        fore = max(other.cursor.high_water for other in self.readers if self._alike(reader, other))
        if reader.cursor.high_water < fore:
            return fore
        near = (each for each in self.readers if each is not reader and self._alike(reader, each))
        return fore if any(fore - each.cursor.high_water <= NEAR for each in near) else NO_CAP

    def read(self, reader: Reader, s2: str, seqs: Sequence[int], *, full: bool, cap: int, top: int) -> Part:
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
        part = Part(reader.group, frozenset(reader.lanes), seqs, before, window, after, void=self.behind)
        if seqs:
            self.flying.append(part)
        elif (
            not self.flying and not self.behind
        ):  # an empty window moves in memory: its own commit would open the next one
            self._settle(part.lanes, part.group, after)
        return part

    def settle(self, part: Part, count: int) -> Cursor | None:
        """The first ``count`` rows of ``part`` are settled. Returns the cursor its lanes have now; ``None``: it does
        not move, since something before it is not settled."""
        earlier = self.flying[: self._land(part)]
        if part.void or any(part.group == each.group and part.lanes & each.lanes for each in earlier):
            self.behind = True
            return None
        if count < len(part.seqs):
            self._miss()
        cursor = part.at(count)
        self._settle(part.lanes, part.group, cursor)
        return cursor

    def release(self, part: Part) -> None:
        """``part`` is not settled and will be read again."""
        place = self._land(part)
        self._miss(place)

    def forget(self, lanes: Iterable[int]) -> None:
        """These lanes are somebody else's."""
        gone = set(lanes)
        self.settled = {name: cursor for name, cursor in self.settled.items() if name[0] not in gone}
        for reader in self.readers:
            reader.lanes -= gone
        self.readers = [reader for reader in self.readers if reader.lanes]

    def merge(self) -> None:
        """Make one reader of those that stand at one place, and of those that are exhausted at one snapshot: both have
        everything visible in it behind them, so either high water is true of both. Nothing else may merge (HARD 4)."""
        merged: list[Reader] = []
        for reader in self.readers:
            for other in merged:
                if self._alike(reader, other) and self._may_merge(reader, other):
                    high_water = max(reader.cursor.high_water, other.cursor.high_water)
                    other.cursor = Cursor(other.cursor.snapshot, high_water)
                    other.exhausted = other.exhausted and reader.exhausted
                    other.lanes |= reader.lanes
                    if not self.flying and not self.behind:
                        self._settle(frozenset(other.lanes), other.group, other.cursor)
                    break
            else:
                merged.append(reader)
        self.readers = merged

    def splits(self, topics: Collection[str]) -> dict[Name, Cursor]:
        """The cursors with which ``topics`` would get groups of their own, where they have none: at the place where the
        lane stands. Store them, then ``assign``; only while nothing is in flight."""
        lanes = [lane for lane, group in self.settled if group == EVERY]
        return {
            (lane, topic): self.settled[lane, EVERY]
            for topic in topics
            for lane in lanes
            if (lane, topic) not in self.settled
        }

    def joins(self, paused: Collection[str]) -> tuple[dict[int, Cursor], list[Name]]:
        """Groups that may be given up, and the cursors of their lanes that are true without them: group and rest are
        exhausted at one snapshot. Store both, then ``assign``; only while nothing is in flight."""
        if all(reader.group == EVERY for reader in self.readers):
            return {}, []
        at = {(lane, reader.group): reader for reader in self.readers for lane in reader.lanes}
        cursors: dict[int, Cursor] = {}
        gone: list[Name] = []
        for (lane, group), reader in sorted(at.items()):
            rest = at.get((lane, EVERY))
            if group == EVERY or group in paused or rest is None or not self._may_merge(reader, rest):
                continue
            high_water = max(reader.cursor.high_water, cursors.get(lane, rest.cursor).high_water)
            cursors[lane] = Cursor(rest.cursor.snapshot, high_water)
            gone.append((lane, group))
        return cursors, gone

    def _may_merge(self, one: Reader, other: Reader) -> bool:
        if one.cursor.window is not None or other.cursor.window is not None:
            return False
        if one.cursor == other.cursor:
            return True
        return one.exhausted and other.exhausted and one.cursor.snapshot == other.cursor.snapshot

    def _alike(self, one: Reader, other: Reader) -> bool:
        return one.group == other.group and one.without == other.without

    def _groups(self, lane: int) -> frozenset[str]:
        return frozenset(group for other, group in self.settled if other == lane and group != EVERY)

    def _settle(self, lanes: frozenset[int], group: str, cursor: Cursor) -> None:
        settled = self.settled
        for lane in lanes:
            if (lane, group) in settled:
                settled[lane, group] = cursor

    def _land(self, part: Part) -> int:
        place = next((place for place, each in enumerate(self.flying) if each is part), len(self.flying))
        del self.flying[place : place + 1]
        return place

    def _miss(self, place: int = 0) -> None:
        """Something was not settled: what was read behind it does not move a cursor."""
        self.behind = True
        for later in self.flying[place:]:
            later.void = True
