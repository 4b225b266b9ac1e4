"""How large a batch may be: as success and conflicts teach, and never so long that others notice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic

BUDGET_S = 0.25
"""How long the handlers of one batch may take together: its rows are locked, and its keys wait, so long."""
UNKNOWN_S = 0.005
"""What a handler is taken to need before it was seen: the first batches are small."""
FORGET = 0.8
"""What remains of a handler's time each time it was too slow for a batch, so that it is tried again."""
SMALLEST = 2
STRIKES = 3
REST_S = 10.0
"""After so many failures in a row of the smallest batches there are none for so long: where many messages fail, or are
told to come later, a batch only doubles their work."""


class Size:
    """Doubles with every full batch that succeeded, halves with every one that did not; from the size that failed last
    on it grows slowly. ``largest``: as configured; 1 means that there are no batches."""

    def __init__(self, largest: int, clock: Callable[[], float] = monotonic) -> None:
        self.largest = largest
        self._clock = clock
        self._strikes = 0
        self._rests_until: float | None = None
        self.now = min(largest, 16)
        self._slow_from = largest

    @property
    def resting(self) -> bool:
        """Whether there are no batches just now."""
        if self._rests_until is None:
            return False
        if self._clock() < self._rests_until:
            return True
        self._rests_until, self._strikes = None, STRIKES - 1
        return False

    def succeeded(self, count: int) -> None:
        self._strikes = 0
        if count < self.now:
            return  # it says nothing about larger ones
        grown = self.now * 2 if self.now < self._slow_from else self.now + max(1, self.largest // 16)
        self.now = min(grown, self.largest)

    def failed(self, count: int) -> None:
        self._strikes = self._strikes + 1 if self.now <= SMALLEST else 0
        if self._strikes >= STRIKES:
            self._rests_until = self._clock() + REST_S
        self.now = self._slow_from = max(min(SMALLEST, self.largest), min(self.now, count) // 2)


class Costs:
    """Seconds that each handler needs in a batch: a moving average, cut at the budget."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def of(self, handler: Hashable) -> float:
        return self._seconds.get(handler, UNKNOWN_S)

    @property
    def slowest(self) -> float:
        return max(self._seconds.values(), default=UNKNOWN_S)

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
