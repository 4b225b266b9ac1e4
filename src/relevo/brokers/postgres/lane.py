"""One lane of a group while it is ours: what was delivered and settled, and so where its cursor stands. Pure."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence

from relevo.ports.broker import Delivery
from relevo.storage.cursors import EVERY, Cursor
from relevo.storage.readers import Part


class Lane:
    """A shard. ``cursor``: what is settled, contiguous in the order of delivery. ``read_at``: where reading goes on.
    ``returned``: handed back, to be delivered before anything else. ``leaving``: nothing more is delivered, but what
    was can still be settled."""

    __slots__ = (
        "_count",
        "_done",
        "_open",
        "_parts",
        "_settled",
        "cursor",
        "epoch",
        "lane",
        "leaving",
        "name",
        "read_at",
        "returned",
        "saved",
        "worked",
    )

    def __init__(self, lane: int, epoch: int, cursor: Cursor) -> None:
        self.lane = lane
        self.epoch = epoch
        self.name = str(lane)
        self.cursor = self.saved = self.read_at = cursor
        self.worked = False
        """Something was settled since the cursor was saved."""
        self.leaving = False
        self.returned: list[Delivery] = []
        self._parts: deque[Part] = deque()
        self._open: dict[int, int] = {}  # delivered and not settled: seq → place in the order of delivery
        self._done: set[int] = set()  # beyond what is contiguous
        self._settled = 0  # of the first part, without a gap
        self._count = 0

    def read(self, part: Part, seqs: Sequence[int]) -> None:
        """``part`` was read, and ``seqs`` of it are this lane's: they are delivered now."""
        self.read_at = part.after
        for seq in seqs:
            self._count += 1
            self._open[seq] = self._count
        if not self._parts and not seqs:
            self.cursor = part.after
            return
        if not seqs and not self._parts[-1].seqs:
            self._parts.pop()  # an empty part behind an empty one: the last says it all
        mine = Part(EVERY, frozenset((self.lane,)), tuple(seqs), part.before, part.window, part.after)
        self._parts.append(mine)

    def settle(self, seq: int) -> None:
        """``seq`` is done. What was never delivered, or is done already, changes nothing."""
        if self._open.pop(seq, None) is None:
            return
        self._done.add(seq)
        while self._parts:
            part, count = self._parts[0], self._settled
            while count < len(part.seqs) and part.seqs[count] in self._done:
                self._done.discard(part.seqs[count])
                count += 1
            if count == self._settled and part.seqs:
                return
            self.cursor, self.worked, self._settled = part.at(count), True, count
            if count < len(part.seqs):
                return
            self._parts.popleft()
            self._settled = 0

    def hand_back(self, delivery: Delivery) -> None:
        """It comes again, in its place."""
        place = self._open.get(delivery.position)
        if place is None:
            return
        at = bisect.bisect_left(self.returned, place, key=lambda other: self._open.get(other.position, 0))
        if self.returned[at : at + 1] != [delivery]:
            self.returned.insert(at, delivery)
