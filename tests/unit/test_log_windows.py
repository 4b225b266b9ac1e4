"""The windows of the source ``log``, simulated statement by statement, and proof that the simulation would notice."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.sources.log.windows import Reader, Windows
from tests.support.log_model import Model, Tape

tapes = st.lists(st.integers(0, 719), min_size=20, max_size=400)


@settings(max_examples=300, deadline=None)
@given(tapes)
def test_every_interleaving_delivers_everything_in_order(tape: list[int]) -> None:
    """FAILURES rows 1, 2, 3, 6, 9, 11, 12: writers that sleep, roll back and take xids early, one that stays open for
    ever; two relays that read ahead, are refused, hand over, die and purge. Nothing lost, no key out of order."""
    model = Model(Tape(tape))
    model.play()
    assert not model.lost()
    assert not model.inversions()


@settings(max_examples=200, deadline=None)
@given(tapes)
def test_without_faults_nothing_is_read_twice(tape: list[int]) -> None:
    """FAILURES row 3: neither late rows, nor pauses, nor groups that part and join, make a reader repeat itself."""
    model = Model(Tape(tape), faults=False)
    model.play()
    assert not model.lost()
    assert not model.inversions()
    assert model.repeated() == 0


class MergesEarly(Windows):
    """HARD 4: readers that are not exhausted at one snapshot become one, at the higher number."""

    def _may_merge(self, one: Reader, other: Reader) -> bool:
        return one.cursor.window is None and other.cursor.window is None


WRONG = {
    "a plain cursor by seq": ({"no_late"}, Windows),
    "a cursor gated at xmin": ({"gated"}, Windows),
    "retention by seq <= hw": ({"purge_by_number"}, Windows),
    "a row shared by the lanes of a cohort": ({"shared_row"}, Windows),
    "a snapshot of a standby": ({"replica"}, Windows),
    "a page that cuts its late rows and closes": ({"cut_late"}, Windows),
    "each late page with a newer snapshot": ({"fresh_window"}, Windows),
    "a late window taken up with a newer snapshot": ({"forget_window"}, Windows),
    "merging early": (set(), MergesEarly),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_model_notices(name: str) -> None:
    """HARD 24: each way that cost others data shows, within a few thousand random schedules."""
    wrong, kind = WRONG[name]
    assert any(not holds(seed, wrong, kind) for seed in range(4000)), f"{name}: the model saw nothing"


def holds(seed: int, wrong: set[str], kind: type[Windows]) -> bool:
    chance = random.Random(seed)
    model = Model(Tape([chance.randrange(720) for _ in range(chance.randrange(50, 600))]), frozenset(wrong), kind)
    model.play()
    return not model.lost() and not model.inversions()
