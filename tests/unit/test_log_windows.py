"""The windows of the source ``log``, simulated statement by statement, and proof that the simulation would notice."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.sources.log.windows import NO_CAP, Reader, Windows
from relevo.storage.cursors import EVERY, Cursor
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


def test_what_is_read_while_a_page_comes_back_moves_no_cursor() -> None:
    """A page is handed back between the question for the next one and its answer: that answer was asked from behind the
    page that is not settled, so it may be settled row by row and nothing more."""
    windows = Windows()
    windows.assign({(0, EVERY): Cursor()})
    (reader,) = windows.due("10:10:")
    first = windows.read(reader, "10:10:", [1, 2], full=True, cap=NO_CAP, top=9)
    windows.release(first)
    second = windows.read(reader, "11:11:", [3, 4], full=False, cap=NO_CAP, top=9)
    assert windows.settle(second, 2) is None
    assert windows.settled == {(0, EVERY): Cursor()}
    windows.rewind()
    assert [each.cursor for each in windows.readers] == [Cursor()]


def test_pages_that_land_out_of_order_move_no_cursor() -> None:
    """The later page's cursor would say of the earlier page that it is settled."""
    windows = Windows()
    windows.assign({(0, EVERY): Cursor(), (1, EVERY): Cursor()})
    (reader,) = windows.due("10:10:")
    first = windows.read(reader, "10:10:", [1, 2], full=True, cap=NO_CAP, top=9)
    second = windows.read(reader, "11:11:", [3, 4], full=True, cap=NO_CAP, top=9)
    assert windows.settle(second, 2) is None
    assert windows.settle(first, 2) == Cursor("10:10:", 2)


def test_lanes_that_stand_apart_are_made_up_before_a_backlog() -> None:
    """After a restart each lane stands at its own last row. They meet at the foremost and go on as one reader, however
    much waits behind: one query a page, not one a lane."""
    windows = Windows()
    windows.assign({(lane, EVERY): Cursor("10:10:", 100 + lane) for lane in range(64)})
    for reader in windows.due("90:90:"):
        cap = windows.cap(reader)
        assert cap == 163  # the foremost too: its late rows, and no more
        windows.read(reader, "90:90:", [], full=False, cap=cap, top=10**6)
    windows.merge()
    (one,) = windows.readers
    assert (one.cursor, len(one.lanes), windows.cap(one)) == (Cursor("90:90:", 163), 64, NO_CAP)


def test_one_that_is_far_behind_keeps_nobody_waiting() -> None:
    """Lanes taken over with a backlog read up to the others; the others read on."""
    windows = Windows()
    windows.assign({(0, EVERY): Cursor("90:90:", 5_000_000), (1, EVERY): Cursor("10:10:", 100)})
    assert sorted(windows.cap(reader) for reader in windows.readers) == [5_000_000, NO_CAP]
