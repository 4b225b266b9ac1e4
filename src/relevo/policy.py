"""Policies: what a team chose to do about failures. Plain values, read by ``relevo.decide``."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from relevo.errors import ConfigError

OnRejected = Literal["park", "block", "skip"]
Order = Literal["key", "none"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter between half and whole of each step.

    ``attempts``: runs in all before the key parks. ``base``, ``cap``: first and longest delay. Half of the delay is
    fixed and half random: retries of many keys spread, and none comes at once (AWS Architecture Blog, "Exponential
    Backoff and Jitter", calls this equal jitter).
    """

    attempts: int = 8
    base: timedelta = timedelta(milliseconds=200)
    factor: float = 2.0
    cap: timedelta = timedelta(minutes=5)
    jitter: bool = True

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base <= timedelta(0) or self.factor < 1 or self.cap < self.base:
            raise ConfigError(
                "Backoff wants attempts of at least 1, a base above 0, a factor of at least 1, a cap not below the base"
            )

    def delay_s(self, attempt: int, rng: random.Random | None = None) -> float:
        """Seconds to wait after failed attempt number ``attempt`` (1 for the first)."""
        exponent = min(attempt - 1, 64)
        try:
            delay = min(self.base.total_seconds() * self.factor**exponent, self.cap.total_seconds())
        except OverflowError:
            delay = self.cap.total_seconds()
        if not self.jitter:
            return delay
        return delay / 2 + (rng or _rng).random() * delay / 2


_rng = random.Random()


@dataclass(frozen=True, slots=True)
class Policy:
    """How one handler (or one destination) wants failures treated.

    ``inline_retry_s``: a shorter delay is waited in place, a longer one as *waiting* in the held table, so that a slow
    retry never blocks a partition's prefix. ``order="none"`` holds the one message only.
    """

    retry: Backoff = field(default_factory=Backoff)
    on_rejected: OnRejected = "park"
    order: Order = "key"
    inline_retry_s: float = 2.0

    def __post_init__(self) -> None:
        """Raises ``ConfigError``: a word that is misspelt would be taken for the default."""
        wait = self.inline_retry_s
        problem = None
        if not isinstance(self.retry, Backoff):
            problem = f"retry is a Backoff, not {type(self.retry).__name__}"
        elif self.on_rejected not in get_args(OnRejected):
            problem = f"on_rejected is 'park', 'block' or 'skip', not {self.on_rejected!r}"
        elif self.order not in get_args(Order):
            problem = f"order is 'key' or 'none', not {self.order!r}"
        elif isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait < math.inf:
            problem = f"inline_retry_s is a number of seconds, 0 or more, not {wait!r}"
        if problem is not None:
            raise ConfigError(problem)


PROBE_BACKOFF = Backoff(attempts=1, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=250))
"""Between probes of an unavailable destination or database; ``attempts`` does not matter there. The cap is what work is
late by after an outage; a probe is one question, so four to eight a second of each process cost nothing over hours."""
