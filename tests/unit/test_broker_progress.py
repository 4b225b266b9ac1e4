"""Contiguous prefixes, against a model that is too slow to use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.brokers.progress import Progress


@given(
    st.sets(st.integers(10, 60), min_size=1, max_size=20),
    st.lists(st.one_of(st.tuples(st.just("settle"), st.integers(5, 65)), st.just(("deliver", 0))), max_size=60),
)
def test_settled_is_the_first_position_not_settled(positions: set[int], steps: list[tuple[str, int]]) -> None:
    """Whatever the order of deliveries (with holes between positions) and settlements."""
    progress = Progress(10)
    coming = sorted(positions)
    delivered: list[int] = []
    settled: set[int] = set()
    for step, position in steps:
        if step == "deliver" and coming:
            delivered.append(coming.pop(0))
            progress.deliver(delivered[-1])
        elif step == "settle":
            progress.settle(position)
            if position in delivered:
                settled.add(position)
        open_positions = [position for position in delivered if position not in settled]
        expected = open_positions[0] if open_positions else (delivered[-1] + 1 if delivered else 10)
        assert progress.settled == expected


def test_a_second_delivery_changes_nothing() -> None:
    progress = Progress(0)
    for position in (0, 1, 0, 1):
        progress.deliver(position)
    progress.settle(0)
    progress.deliver(0)
    assert progress.settled == 1


def test_unsaved() -> None:
    """There is something to store only when the prefix grew beyond what was stored."""
    progress = Progress(5)
    progress.deliver(5)
    progress.deliver(6)
    progress.settle(6)
    assert not progress.unsaved
    progress.settle(5)
    assert progress.unsaved
    progress.saved = 7
    assert not progress.unsaved
