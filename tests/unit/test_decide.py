"""`decide`, exhaustively: every outcome, under every policy, at every attempt that matters."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from typing import get_args

import pytest

from relevo.decide import Again, Decision, HandBack, LookUp, Park, Pause, Settle, Skip, Wait, decide
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
from relevo.policy import Backoff, OnRejected, Order, Policy

RETRY = Backoff(attempts=4, base=timedelta(seconds=1), factor=3, cap=timedelta(seconds=60), jitter=False)
SAMPLES: dict[type, Outcome] = {
    Accepted: Accepted(),
    Duplicate: Duplicate(),
    Unavailable: Unavailable("refused"),
    Unconfirmed: Unconfirmed("timeout"),
    Rejected: Rejected("MSG_SIZE_TOO_LARGE", "too large"),
    Failed: Failed("ValueError", "no"),
    RetryAsked: RetryAsked(timedelta(seconds=1), "later"),
    RejectAsked: RejectAsked("never"),
    Conflict: Conflict("40001"),
    Ambiguous: Ambiguous("reply lost"),
    Cancelled: Cancelled(),
}
POLICIES = [
    Policy(retry=RETRY, on_rejected=on_rejected, order=order, inline_retry_s=2.0)
    for on_rejected, order in itertools.product(get_args(OnRejected), get_args(Order))
]
EVERY = list(itertools.product(SAMPLES.values(), range(1, 7), POLICIES))


def test_samples_are_complete() -> None:
    """A new outcome must come to this page first."""
    assert set(SAMPLES) == set(get_args(Outcome))


def expected(outcome: Outcome, attempt: int, policy: Policy) -> Decision:
    """ARCHITECTURE section 6 as a table of its own, written apart from the code."""

    def give_up(reason: str) -> Decision:
        return {
            "park": Park(reason),
            "skip": Skip(reason),
            "block": Again(60.0, reason, counts=False),
        }[policy.on_rejected]

    if isinstance(outcome, Failed):
        table: dict[int, Decision] = {1: Again(1.0, "ValueError: no", counts=True), 2: Wait(3.0, "ValueError: no")}
        table[3] = Wait(9.0, "ValueError: no")
        return table.get(attempt) or give_up("ValueError: no")
    if isinstance(outcome, RetryAsked):
        return Again(1.0, "later", counts=True) if attempt < 4 else give_up("later")
    fixed: dict[type, Decision] = {
        Accepted: Settle(),
        Duplicate: Settle(),
        Unavailable: Pause("refused"),
        Unconfirmed: Again(1.0, "timeout", counts=False),
        Rejected: give_up("MSG_SIZE_TOO_LARGE: too large"),
        RejectAsked: give_up("never"),
        Conflict: Again(1.0, "40001", counts=False),
        Ambiguous: LookUp("reply lost"),
        Cancelled: HandBack(),
    }
    return fixed[type(outcome)]


@pytest.mark.parametrize(("outcome", "attempt", "policy"), EVERY)
def test_every_case(outcome: Outcome, attempt: int, policy: Policy) -> None:
    """396 cases against the table."""
    assert decide(outcome, attempt, policy) == expected(outcome, attempt, policy)


@pytest.mark.parametrize(("outcome", "attempt", "policy"), EVERY)
def test_only_the_message_s_own_fault_spends_an_attempt(outcome: Outcome, attempt: int, policy: Policy) -> None:
    """FAILURES row 16: outages, lost confirms, conflicts and shutdowns never park and never count."""
    decision = decide(outcome, attempt, policy)
    if isinstance(outcome, Unavailable | Unconfirmed | Conflict | Ambiguous | Cancelled):
        assert not isinstance(decision, Park | Skip | Wait | Settle)
        assert not (isinstance(decision, Again) and decision.counts)
    if isinstance(decision, Settle):
        assert isinstance(outcome, Accepted | Duplicate)


def test_a_retry_asked_for_later_waits_in_the_table() -> None:
    """`Retry(after=1 hour)` is not capped by the policy and not waited for in place; without a reason it has one."""
    decision = decide(RetryAsked(timedelta(hours=1), ""), 1, POLICIES[0])
    assert decision == Wait(3600.0, "the handler asked for a retry")


def test_a_conflict_is_rerun_soon_whatever_the_backoff() -> None:
    """The rerun after a serialization failure is never slower than inline retries are."""
    slow = Policy(retry=Backoff(base=timedelta(minutes=1), jitter=False))
    assert decide(Conflict("40P01"), 1, slow) == Again(2.0, "40P01", counts=False)


def test_jitter_is_repeatable() -> None:
    """The same seed, the same decision."""
    policy, outcome = Policy(), Failed("E", "e")
    assert decide(outcome, 1, policy, random.Random(1)) == decide(outcome, 1, policy, random.Random(1))
    assert decide(outcome, 1, policy, random.Random(1)) != decide(outcome, 1, policy, random.Random(2))
