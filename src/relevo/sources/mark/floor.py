"""How far the outbox is known to be over and done with, so that a page need not look there again.

A row becomes visible at its commit, not in ``seq`` order; a floor that simply follows what was read would lose late
ones. But a transaction has its xid before it takes a ``seq`` (the table's column order), and a visible row proves that
every lower ``seq`` was taken before. So every such transaction has a lower xid than one that begins to write after that
row was read: the settle of its page. Once all xids below the settle's have ended, nothing can appear at or below that
row any more.

A snapshot's own ``xmax`` will not do: it is one past the highest xid that *completed*, and a transaction beyond it may
be running with a lower ``seq`` in its hands (found by the ledger: a key's row was passed and came 0.4 s too late).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

CHECKPOINTS_MAX = 256


@dataclass
class Floor:
    """``seq``: everything up to it is settled or rolled back, for the lanes and topics read. A transaction that stays
    open anywhere in the cluster holds it back, which costs time, never a row."""

    seq: int = 0
    _checkpoints: deque[tuple[int, int]] = field(default_factory=deque)

    def settled(self, last_seq: int, xid: int) -> None:
        """A page that ended with ``last_seq`` was settled by the transaction ``xid``, begun after it was read."""
        if not self._checkpoints or self._checkpoints[-1][0] < last_seq:
            if len(self._checkpoints) >= CHECKPOINTS_MAX:
                self._checkpoints.pop()
            self._checkpoints.append((last_seq, xid))

    def read(self, xmin: int, open_seqs: Iterable[int]) -> None:
        """A page was read: ``xmin`` of its snapshot, and every ``seq`` that is unsettled as far as this process knows
        (in flight when it was asked for, and the page itself)."""
        over = 0
        while self._checkpoints and self._checkpoints[0][1] <= xmin:
            over = self._checkpoints.popleft()[0]
        if over:
            self.seq = max(self.seq, min(over, min(open_seqs, default=over + 1) - 1))

    def reset(self) -> None:
        """Start over: other lanes or topics are read from now on."""
        self.seq = 0
        self._checkpoints.clear()
