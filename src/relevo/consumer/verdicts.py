"""What a handler can say instead of returning: try again later, or never."""

from __future__ import annotations

from datetime import timedelta

from relevo.errors import ConfigError
from relevo.total import delay_of, text_of


class Retry(Exception):
    """Raise it to have the message again after a time of the handler's choosing. Counts as an attempt.

    ``after``: a ``timedelta``, or seconds. ``reason``: a text, or anything that has one, such as an exception. Raises
    ``ConfigError`` for a time that is not one, is negative or not finite.
    """

    def __init__(self, after: timedelta | float, reason: object = "") -> None:
        delay = delay_of(after)
        if delay is None:
            raise ConfigError(
                f"Retry(after=…) takes a timedelta, or a number of seconds from 0 on, and got {text_of(after)[:100]}"
            )
        super().__init__(text_of(reason) or f"again after {delay}")
        self.after = delay
        self.reason = reason


class Reject(Exception):
    """Raise it when no further attempt can help: the message is parked (or what ``on_rejected`` says) now.

    ``reason``: a text, or anything that has one, such as an exception.
    """

    def __init__(self, reason: object = "") -> None:
        super().__init__(text_of(reason))
        self.reason = reason
