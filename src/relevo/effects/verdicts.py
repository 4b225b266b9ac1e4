"""What an act, or a look at one whose outcome was lost, can say."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from relevo.errors import ConfigError


class EffectRefused(Exception):
    """Raise it when the act was refused for good, and so not done: the effect has *failed*."""


class NotDone(Exception):
    """The act was certainly not done: raise it from the act, return it from ``verify``. It is tried again, after
    ``retry_after`` (a ``timedelta`` or seconds) or the effect's backoff."""

    def __init__(self, reason: str = "", *, retry_after: timedelta | float | None = None) -> None:
        seconds = retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after
        if seconds is not None and seconds < 0:
            raise ConfigError("NotDone(retry_after=…) wants a time that is not negative")
        super().__init__(reason or "not done")
        self.retry_after_s = seconds


@dataclass(frozen=True, slots=True)
class Done:
    """What ``verify`` returns when the act was done. ``result``: stored; anything that JSON can hold."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """What ``verify`` returns when it cannot tell yet. It is asked again later."""

    reason: str = ""


Verdict = Done | NotDone | Unknown
