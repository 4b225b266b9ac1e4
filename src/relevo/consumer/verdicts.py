"""What a handler can say instead of returning: try again later, or never."""

from __future__ import annotations

from datetime import timedelta

from relevo.errors import ConfigError


class Retry(Exception):
    """Raise it to have the message again after a time of the handler's choosing. Counts as an attempt.

    ``after``: a ``timedelta``, or seconds.
    """

    def __init__(self, after: timedelta | float, reason: str = "") -> None:
        delay = after if isinstance(after, timedelta) else timedelta(seconds=after)
        if delay < timedelta(0):
            raise ConfigError("Retry(after=…) wants a time that is not negative")
        super().__init__(reason or f"again after {delay}")
        self.after = delay
        self.reason = reason


class Reject(Exception):
    """Raise it when no further attempt can help: the message is parked (or what ``on_rejected`` says) now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
