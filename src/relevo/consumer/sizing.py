"""How large a batch may be: as success and conflicts teach, and never so long that others notice."""

from __future__ import annotations

from collections.abc import Hashable

BUDGET_S = 0.1
"""How long the handlers of one batch may take together: its rows are locked, and its keys wait, so long."""
UNKNOWN_S = 0.005
"""What a handler is taken to need before it was seen: the first batches are small."""
FORGET = 0.8
"""What remains of a handler's time each time it was too slow for a batch, so that it is tried again."""
SMALLEST = 2


class Size:
    """Doubles with every full batch that succeeded, halves with every one that did not; from the size that failed last
    on it grows slowly. ``largest``: as configured; 1 means that there are no batches."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.now = min(largest, 16)
        self._slow_from = largest

    def succeeded(self, count: int) -> None:
        if count < self.now:
            return  # it says nothing about larger ones
        grown = self.now * 2 if self.now < self._slow_from else self.now + max(1, self.largest // 16)
        self.now = min(grown, self.largest)

    def failed(self, count: int) -> None:
        self.now = self._slow_from = max(min(SMALLEST, self.largest), min(self.now, count) // 2)


class Costs:
    """Seconds that each handler needs in a batch: a moving average, cut at the budget."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def of(self, handler: Hashable) -> float:
        return self._seconds.get(handler, UNKNOWN_S)

    def took(self, handler: Hashable, seconds: float) -> None:
        seconds = min(seconds, BUDGET_S)
        before = self._seconds.get(handler)
        self._seconds[handler] = seconds if before is None else before + (seconds - before) / 4

    def allows(self, handler: Hashable, count: int) -> bool:
        """Whether ``count`` runs fit into the budget. Where not even two do, the memory of it fades."""
        cost = self._seconds.get(handler, UNKNOWN_S)
        if count * cost <= BUDGET_S:
            return True
        if count == SMALLEST:
            self._seconds[handler] = cost * FORGET
        return False
