"""Who must wait behind a refused message."""

from __future__ import annotations

from relevo.brokers.refusals import Refusals

KEY, OTHER = ("t", b"k"), ("t", b"o")


def test_calls_that_began_before_the_caller_knew_are_closed() -> None:
    """The refusal of call 1 closes its key for call 2, which began before 1 ended, and not for call 3."""
    refusals = Refusals()
    one, two = refusals.begin(), refusals.begin()
    refusals.refuse(one, KEY)
    assert refusals.closed(one, KEY)
    assert refusals.closed(two, KEY)
    assert not refusals.closed(two, OTHER)
    refusals.end(one)
    three = refusals.begin()
    assert refusals.closed(two, KEY)
    assert not refusals.closed(three, KEY)


def test_a_message_turned_away_closes_its_key_in_turn() -> None:
    """Call 3 began before call 2 had told that it turned the key away."""
    refusals = Refusals()
    one, two = refusals.begin(), refusals.begin()
    refusals.refuse(one, KEY)
    refusals.end(one)
    three = refusals.begin()
    refusals.refuse(two, KEY)
    assert refusals.closed(three, KEY)
    refusals.end(two)
    assert refusals.closed(three, KEY)
    assert not refusals.closed(refusals.begin(), KEY)


def test_nothing_is_remembered_when_all_calls_ended() -> None:
    refusals = Refusals()
    calls = [refusals.begin() for _ in range(3)]
    refusals.refuse(calls[1], KEY)
    assert refusals.some
    for call in calls:
        refusals.end(call)
    assert not refusals.some
