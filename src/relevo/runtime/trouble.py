"""What does not work just now, and since when."""

from __future__ import annotations

from datetime import datetime

from relevo.runtime.clock import SYSTEM, Clock


class Trouble:
    """``reason``: ``None`` while all is well. The time since when stays while the reason changes."""

    __slots__ = ("_clock", "_since", "reason")

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._since: datetime | None = None
        self.reason: str | None = None

    def begin(self, reason: str) -> bool:
        """It does not work, because of ``reason``; whether it did until now."""
        fresh = self.reason is None
        self.reason = reason
        if fresh:
            self._since = self._clock.wall()
        return fresh

    def end(self) -> None:
        self.reason = self._since = None

    @property
    def text(self) -> str | None:
        """The reason and since when, for readiness."""
        if self.reason is None or self._since is None:
            return None
        return f"{self.reason} (since {self._since.isoformat(timespec='seconds')})"
