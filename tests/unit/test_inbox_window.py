"""The inbox's window against everything that may bring a message again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from relevo import Backoff, Consumer, Event
from relevo.consumer.start import retry_budget_s, short_window
from relevo.settings import ConsumerSettings
from tests.support.events import OrderPlaced


def consumer(retry: Backoff) -> Consumer:
    made = Consumer("billing", ["shop.order"])

    @made.on(OrderPlaced, retry=retry)
    def charge(event: Event[OrderPlaced]) -> None: ...

    return made


def test_the_defaults_are_long_enough() -> None:
    """A week of memory, a day of outage, minutes of retries."""
    assert short_window(consumer(Backoff()), ConsumerSettings()) is None


def test_a_window_that_is_too_short_is_said_in_plain_words() -> None:
    """The sentence names the consumer, the window, what it is compared with, and the value to set."""
    slow = Backoff(attempts=4, base=timedelta(hours=1), factor=1.0, cap=timedelta(hours=1))
    said = short_window(consumer(slow), ConsumerSettings(inbox_window_s=3600.0, redelivery_s=7200.0))
    assert said is not None
    for part in ("billing", "3,600 s", "processed twice", "consumer.inbox_window_s to 18,000"):
        assert part in said


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        (Backoff(attempts=1), 0.0),
        (Backoff(attempts=3, base=timedelta(seconds=1)), 3.0),
        (Backoff(attempts=5, base=timedelta(seconds=1), cap=timedelta(seconds=2)), 7.0),
        (Backoff(attempts=100, base=timedelta(seconds=1), cap=timedelta(seconds=1)), 99.0),
    ],
)
def test_the_budget_is_the_sum_of_the_delays(retry: Backoff, seconds: float) -> None:
    """One delay less than attempts, each capped."""
    assert retry_budget_s(retry) == seconds
