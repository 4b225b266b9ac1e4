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
        self._done: set[int] = set()
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
        done = self._done
        while self._parts:
            part = self._parts[0]
            count = next((at for at, each in enumerate(part.seqs) if each not in done), len(part.seqs))
            if not count and part.seqs:
                return
            self.cursor = part.at(count)
            self.worked = True
            if count < len(part.seqs):
                return
            done.difference_update(part.seqs)
            self._parts.popleft()

    def hand_back(self, delivery: Delivery) -> None:
        """It comes again, in its place."""
        place = self._open.get(delivery.position)
        if place is None:
            return
        at = bisect.bisect_left(self.returned, place, key=lambda other: self._open.get(other.position, 0))
        if self.returned[at : at + 1] != [delivery]:
            self.returned.insert(at, delivery)
