"""When each kind of work last succeeded: readiness judges by the age of a success, not by the last error."""

from __future__ import annotations

from collections.abc import Mapping

from relevo.runtime.clock import SYSTEM, Clock


class Pulse:
    """One per engine; every loop says ``beat`` when a turn of it succeeded. Costs one dictionary entry."""

    __slots__ = ("_at", "_seconds")

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._seconds = clock.seconds
        self._at: dict[str, float] = {}

    def beat(self, name: str) -> None:
        """``name`` succeeded just now."""
        self._at[name] = self._seconds()

    def age_s(self, name: str) -> float | None:
        """Seconds since ``name`` last succeeded; ``None``: it never did."""
        at = self._at.get(name)
        return None if at is None else max(0.0, self._seconds() - at)

    def ages(self) -> Mapping[str, float]:
        """Of all that ever succeeded."""
        now = self._seconds()
        return {name: max(0.0, now - at) for name, at in self._at.items()}
