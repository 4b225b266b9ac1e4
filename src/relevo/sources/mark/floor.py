"""How far the outbox is known to be over and done with, so that a page need not look there again.

A row becomes visible at its commit, not in ``seq`` order; a floor that simply follows what was read would lose late
ones. But a transaction has its xid before it takes a ``seq`` (the table's column order), and a visible row proves that
every lower ``seq`` was taken before the snapshot that shows it. So once all xids below that snapshot's ``xmax`` have
ended, nothing can appear at or below that row any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

CHECKPOINTS_MAX = 256


@dataclass
class Floor:
    """``seq``: everything up to it is settled or rolled back, for the lanes and topics read. Grows with ``advance``; a
    transaction that stays open anywhere in the cluster holds it back, which costs time, never a row."""

    seq: int = 0
    _checkpoints: deque[tuple[int, int]] = field(default_factory=deque)

    def advance(self, xmin: int, xmax: int, last_seq: int, open_seqs: Iterable[int]) -> None:
        """After a page: its snapshot's ``xmin`` and ``xmax``, the highest ``seq`` seen in it, and every ``seq`` that is
        unsettled as far as this process knows (in flight, the page itself among them)."""
        over = 0
        while self._checkpoints and self._checkpoints[0][1] <= xmin:
            over = self._checkpoints.popleft()[0]
        if over:
            self.seq = max(self.seq, min(over, min(open_seqs, default=over + 1) - 1))
        if not self._checkpoints or self._checkpoints[-1][0] < last_seq:
            if len(self._checkpoints) >= CHECKPOINTS_MAX:
                self._checkpoints.pop()
            self._checkpoints.append((last_seq, xmax))

    def reset(self) -> None:
        """Start over: other lanes or topics are read from now on."""
        self.seq = 0
        self._checkpoints.clear()
