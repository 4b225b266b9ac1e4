"""Backoff: its bounds and its spread."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo import Backoff
from relevo.errors import ConfigError


@given(st.integers(1, 10**9), st.integers(0, 1000))
def test_between_half_and_whole_and_never_above_the_cap(attempt: int, seed: int) -> None:
    """Any attempt, however large: at least half of the step, never more than it, never above the cap."""
    policy = Backoff()
    step = min(0.2 * 2.0 ** min(attempt - 1, 64), 300.0)
    assert step / 2 <= policy.delay_s(attempt, random.Random(seed)) <= step


def test_without_jitter() -> None:
    """Exactly base times factor to the power of attempt, capped."""
    policy = Backoff(base=timedelta(seconds=1), factor=2, cap=timedelta(seconds=5), jitter=False)
    assert [policy.delay_s(attempt) for attempt in (1, 2, 3, 4, 50)] == [1, 2, 4, 5, 5]


def test_keys_that_failed_together_do_not_come_back_together() -> None:
    """1,000 retries of the same attempt spread over the half step."""
    delays = [Backoff().delay_s(5, random.Random(seed)) for seed in range(1000)]
    assert max(delays) - min(delays) > 0.9 * 3.2 / 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"base": timedelta(0)},
        {"factor": 0.5},
        {"base": timedelta(seconds=2), "cap": timedelta(seconds=1)},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    """Said where it is written, not at the first failure at night."""
    with pytest.raises(ConfigError):
        Backoff(**wrong)
