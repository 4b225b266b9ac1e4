"""What an act, or a look at one whose outcome was lost, can say."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from relevo.errors import ConfigError
from relevo.total import delay_of, text_of


class EffectRefused(Exception):
    """Raise it when the act was refused for good, and so not done: the effect has *failed*."""


class NotDone(Exception):
    """The act was certainly not done: raise it from the act, return it from ``verify``. It is tried again, after
    ``retry_after`` (a ``timedelta`` or seconds) or the effect's backoff."""

    def __init__(self, reason: object = "", *, retry_after: timedelta | float | None = None) -> None:
        delay = None if retry_after is None else delay_of(retry_after)
        if retry_after is not None and delay is None:
            raise ConfigError(
                "NotDone(retry_after=…) takes a timedelta, or a number of seconds from 0 on, and got "
                f"{text_of(retry_after)[:100]}"
            )
        super().__init__(text_of(reason) or "not done")
        self.retry_after_s = None if delay is None else delay.total_seconds()


@dataclass(frozen=True, slots=True)
class Done:
    """What ``verify`` returns when the act was done. ``result``: stored; anything that JSON can hold."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """What ``verify`` returns when it cannot tell yet. It is asked again later."""

    reason: str = ""


Verdict = Done | NotDone | Unknown
