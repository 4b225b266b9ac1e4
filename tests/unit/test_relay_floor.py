"""The floor of the source ``mark``, against a small model of PostgreSQL's visibility: random schedules of transactions
that take an xid, then seqs, then commit or roll back, and a reader in between."""

from __future__ import annotations

import random

import pytest

from relevo.sources.mark.floor import CHECKPOINTS_MAX, Floor


class Model:
    """Transactions with xids in order of their first write; rows become visible at commit, in any order."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.next_xid, self.next_seq = 100, 1
        self.open: dict[int, list[int]] = {}
        self.visible: set[int] = set()
        self.settled: set[int] = set()

    def step(self) -> None:
        choice = self.chance.random()
        if choice < 0.35 or not self.open:
            self.open[self.next_xid] = []
            self.next_xid += 1
        elif choice < 0.7:
            self.open[self.chance.choice(list(self.open))].append(self.next_seq)
            self.next_seq += 1
        else:
            seqs = self.open.pop(self.chance.choice(list(self.open)))
            if self.chance.random() < 0.8:
                self.visible.update(seqs)

    def snapshot(self) -> tuple[int, int]:
        return min(self.open, default=self.next_xid), self.next_xid

    def unsettled(self) -> list[int]:
        return sorted(self.visible - self.settled)


@pytest.mark.parametrize("seed", range(200))
def test_nothing_ever_appears_at_or_below_the_floor(seed: int) -> None:
    chance = random.Random(seed)
    model, floor = Model(chance), Floor()
    in_flight: list[list[int]] = []
    for _ in range(300):
        model.step()
        if chance.random() < 0.4:
            flying = [seq for page in in_flight for seq in page]
            missed = [seq for seq in model.unsettled() if seq <= floor.seq]
            assert not missed, f"rows {missed} would never be read again, the floor is {floor.seq}"
            page = [seq for seq in model.unsettled() if seq > floor.seq and seq not in flying][
                : chance.choice((1, 3, 10))
            ]
            if page:
                floor.advance(*model.snapshot(), page[-1], [page[0], *flying])
                in_flight.append(page)
        if in_flight and chance.random() < 0.4:
            page = in_flight.pop(0)
            if chance.random() < 0.8:  # else: handed back, it stays unsettled
                model.settled.update(page)


def test_the_floor_follows_when_nothing_is_open() -> None:
    floor = Floor()
    floor.advance(xmin=10, xmax=10, last_seq=100, open_seqs=[1])
    assert floor.seq == 0
    floor.advance(xmin=12, xmax=12, last_seq=200, open_seqs=[101])
    assert floor.seq == 100


def test_an_open_transaction_holds_the_floor_back() -> None:
    floor = Floor()
    for page in range(1, 50):
        floor.advance(xmin=5, xmax=10 + page, last_seq=page * 100, open_seqs=[page * 100 - 99])
    assert floor.seq == 0
    floor.advance(xmin=1000, xmax=1000, last_seq=5000, open_seqs=[4901])
    assert floor.seq == 4900


def test_checkpoints_are_bounded_while_a_transaction_stays_open() -> None:
    floor = Floor()
    for page in range(1, 10 * CHECKPOINTS_MAX):
        floor.advance(xmin=5, xmax=10 + page, last_seq=page, open_seqs=[page])
    assert len(floor._checkpoints) <= CHECKPOINTS_MAX


def test_reset_starts_over() -> None:
    floor = Floor()
    floor.advance(10, 10, 100, [1])
    floor.advance(12, 12, 200, [101])
    floor.reset()
    assert floor.seq == 0
    floor.advance(13, 13, 250, [201])
    assert floor.seq == 0
