"""Decide: what follows from an outcome. One pure function for both halves; the engines only act on its answer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, assert_never

from relevo.outcome import (
    Accepted,
    Ambiguous,
    Cancelled,
    Conflict,
    Duplicate,
    Failed,
    Outcome,
    RejectAsked,
    Rejected,
    RetryAsked,
    Unavailable,
    Unconfirmed,
)
from relevo.policy import Policy


@dataclass(frozen=True, slots=True)
class Settle:
    """Done: move past it."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Given up on purpose, by policy: move past it and leave a trace."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause the destination (or the database), probe with backoff, spend no attempt, then the same message again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """The same message again after ``delay_s``, before all else of its key. ``counts``: an attempt is spent."""

    delay_s: float
    reason: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold the key as *waiting*, due in ``delay_s`` by the database clock."""

    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Park:
    """Hold the key as *parked*: a person must look."""

    reason: str


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look the inbox row up on a new connection: found means done, not found means again."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandBack:
    """Give the message back untouched; the attempt is refunded."""


DELAY_MAX_S: Final = 100 * 365 * 86_400.0
"""Longest delay: what is asked for beyond it is cut, so that every database can hold the time when it is over."""

Decision = Settle | Skip | Pause | Again | Wait | Park | LookUp | HandBack


def decide(outcome: Outcome, attempt: int, policy: Policy, rng: random.Random | None = None) -> Decision:
    """What to do about one message after ``attempt`` counted runs (1 for the first).

    Pure but for the jitter, which ``rng`` makes repeatable. Total: every outcome has a decision.
    """
    match outcome:
        case Accepted() | Duplicate():
            return Settle()
        case Unavailable(reason):
            return Pause(reason)
        case Unconfirmed(reason):
            return Again(policy.retry.delay_s(1, rng), reason, counts=False)
        case Conflict(reason):
            return Again(min(policy.retry.delay_s(1, rng), policy.inline_retry_s), reason, counts=False)
        case Ambiguous(reason):
            return LookUp(reason)
        case Cancelled():
            return HandBack()
        case Rejected(code, reason):
            return _give_up(f"{code}: {reason}", policy)
        case RejectAsked(reason):
            return _give_up(reason, policy)
        case RetryAsked(after, reason):
            return _retry(after.total_seconds(), attempt, reason or "the handler asked for a retry", policy)
        case Failed(error_type, error):
            return _retry(policy.retry.delay_s(attempt, rng), attempt, f"{error_type}: {error}", policy)
        case _:
            assert_never(outcome)


def _retry(delay_s: float, attempt: int, reason: str, policy: Policy) -> Decision:
    if attempt >= policy.retry.attempts:
        return _give_up(reason, policy)
    delay_s = min(delay_s, DELAY_MAX_S)
    if delay_s <= policy.inline_retry_s:
        return Again(delay_s, reason, counts=True)
    return Wait(delay_s, reason)


def _give_up(reason: str, policy: Policy) -> Decision:
    match policy.on_rejected:
        case "park":
            return Park(reason)
        case "skip":
            return Skip(reason)
        case "block":
            return Again(min(policy.retry.cap.total_seconds(), DELAY_MAX_S), reason, counts=False)
        case _:
            assert_never(policy.on_rejected)
