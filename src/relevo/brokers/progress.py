"""How far one shard was settled: the contiguous prefix of what was delivered. Pure; one per shard and generation."""

from __future__ import annotations

from collections import deque


class Progress:
    """Positions delivered and settled.

    "Contiguous" is meant among *delivered* positions: a log has holes (compaction, transaction markers, retention).
    """

    __slots__ = ("_done", "_last", "_pending", "_start", "saved")

    def __init__(self, start: int) -> None:
        """``start``: where reading begins, which is what was settled before."""
        self._start = start
        self._last: int | None = None
        self._pending: deque[int] = deque()
        self._done: set[int] = set()
        self.saved = start
        """The position last made durable; the adapter sets it."""

    def deliver(self, position: int) -> None:
        """``position`` is delivered; for the second time it changes nothing."""
        if self._last is None:
            self.saved = max(self.saved, position)  # a log has holes: up to here there was nothing to settle
        if self._last is None or position > self._last:
            self._last = position
            self._pending.append(position)

    def settle(self, position: int) -> None:
        """``position`` is done. Positions that were never delivered, or are done already, change nothing."""
        pending, done = self._pending, self._done
        if self._last is None or position > self._last or not pending or position < pending[0]:
            return
        done.add(position)
        while pending and pending[0] in done:
            done.discard(pending.popleft())

    @property
    def settled(self) -> int:
        """The position to go on from after a restart: everything before it is settled."""
        if self._pending:
            return self._pending[0]
        return self._start if self._last is None else self._last + 1

    @property
    def unsaved(self) -> bool:
        return self.settled > self.saved
