"""Snapshot windows of the source ``log``: whole pages are settled, several may be in flight. Pure, no IO.

Cursors, readers and windows are in ``storage/readers.py``. Pages may be in flight while the next is read: a reader's
cursor is where it *reads* on, ``settled`` is what may be stored. Whatever goes wrong with a page, reading starts again
from ``settled``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relevo.storage.cursors import EVERY, Cursor
from relevo.storage.readers import NEAR, NO_CAP, Name, Part, Reader, Readers

__all__ = ["NEAR", "NO_CAP", "Name", "Part", "Reader", "Windows"]


@dataclass
class Windows(Readers):
    """The readers of one relay. Not for two tasks at once, except that pages may be settled while the next is read."""

    settled: dict[Name, Cursor] = field(default_factory=dict)
    flying: list[Part] = field(default_factory=list)
    behind: bool = False
    """Reading must start again from ``settled``: something that was read was not settled."""

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

    def read(self, reader: Reader, s2: str, seqs: Sequence[int], *, full: bool, cap: int, top: int) -> Part:
        """As ``advance``; what was read is in flight until it is settled or released."""
        part = self.advance(reader, s2, seqs, full=full, cap=cap, top=top)
        part.void = self.behind
        if seqs:
            self.flying.append(part)
        elif (
            not self.flying and not self.behind
        ):  # an empty window moves in memory: its own commit would open the next one
            self._settle(part.lanes, part.group, part.after)
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
        self.drop(gone)

    def merge(self) -> None:
        """As ``meet``; what is settled goes with the readers while nothing is in flight."""
        for reader in self.meet():
            if not self.flying and not self.behind:
                self._settle(frozenset(reader.lanes), reader.group, reader.cursor)

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
