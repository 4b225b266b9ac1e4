"""Which messages run together, in which order, and how large a batch may be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from relevo.consumer.keys import KeyQueues
from relevo.consumer.pipelines import REST, STRIKES, Pipelines
from relevo.consumer.sizing import BUDGET_S, REST_S, Costs, Size
from relevo.consumer.sizing import STRIKES as STRIKES_SMALL


@dataclass(eq=False)
class Item:
    number: int
    key: str
    group: str | None = "g"
    most: int = 100


class Grouping:
    """Batches of at most ``largest``; an item that is told to be alone has no group."""

    def __init__(self, largest: int, at_once: int = 2) -> None:
        self.largest, self._at_once = largest, at_once

    def of(self, item: Item) -> str | None:
        return item.group

    def fits(self, items: Sequence[Item], item: Item) -> bool:
        return len(items) < min(self.largest, items[0].most, item.most)

    def at_once(self, group: object) -> int:
        return self._at_once


@pytest.mark.parametrize("seed", range(25))
async def test_every_item_once_and_each_key_in_order(seed: int) -> None:
    """Random keys, groups, pauses, failures and withdrawals: what a batch gives back runs again before what is behind
    it, nothing is lost or doubled, and two items of a key are never under way at once."""
    chance = random.Random(seed)
    done: list[Item] = []
    under_way: set[str] = set()
    sizes: list[int] = []

    async def pause() -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)

    async def one(item: Item) -> None:
        assert item.key not in under_way
        under_way.add(item.key)
        await pause()
        under_way.discard(item.key)
        done.append(item)

    async def many(items: Sequence[Item]) -> Sequence[Item]:
        keys = {item.key for item in items}
        assert not keys & under_way
        assert len(items) > 1
        assert len({item.group for item in items}) == 1
        sizes.append(len(items))
        under_way.update(keys)
        await pause()
        under_way.difference_update(keys)
        fails = chance.random()
        if fails < 0.3:  # one of them is bad: all by themselves
            for item in items:
                item.group = None
            return items
        if fails < 0.5:  # its time is over
            done.extend(items[:1])
            return items[1:]
        done.extend(items)
        return ()

    failures: list[BaseException] = []
    queues: KeyQueues[Item] = KeyQueues(one, failures.append, many, Grouping(chance.choice((2, 5, 50))))
    items = [Item(number, f"k{chance.randrange(8)}", chance.choice(("g", "g", "h", None))) for number in range(200)]
    out: list[Item] = []
    for item in items:
        queues.put(item.key, item)
        if chance.random() < 0.1:
            await asyncio.sleep(0)
            if chance.random() < 0.3:  # as when a shard goes away, at any moment
                gone = {f"k{number}" for number in range(8) if chance.random() < 0.5}
                out += queues.withdraw(lambda item, gone=gone: item.key in gone)  # type: ignore[misc]
    async with asyncio.timeout(30):
        await queues.join()
    assert not failures
    assert sorted(item.number for item in done + out) == list(range(200))
    for key in {item.key for item in items}:
        mine = [item.number for item in done if item.key == key]
        assert mine == sorted(mine)
    assert sizes
    assert len(queues) == 0


async def test_what_is_put_together_runs_together_and_no_batch_has_one() -> None:
    """One turn of the loop gathers what was put; a lone item goes the way of single items."""
    batches: list[list[int]] = []
    singles: list[int] = []

    async def one(item: Item) -> None:
        singles.append(item.number)

    async def many(items: Sequence[Item]) -> Sequence[Item]:
        batches.append([item.number for item in items])
        return ()

    queues: KeyQueues[Item] = KeyQueues(one, pytest.fail, many, Grouping(4))  # type: ignore[arg-type]
    for number in range(9):
        queues.put(f"k{number}", Item(number, f"k{number}"))
    await queues.join()
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert singles == [8]


async def test_what_has_not_begun_can_be_taken_out() -> None:
    """A shard goes away: its items leave the queues, what is under way goes on, others stay."""
    go = asyncio.Event()
    done: list[int] = []

    async def one(item: Item) -> None:
        await go.wait()
        done.append(item.number)

    async def many(items: Sequence[Item]) -> Sequence[Item]:
        await go.wait()
        done.extend(item.number for item in items)
        return ()

    queues: KeyQueues[Item] = KeyQueues(one, pytest.fail, many, Grouping(2, at_once=1))  # type: ignore[arg-type]
    for number in range(6):
        queues.put(f"k{number}", Item(number, f"k{number}"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    out = queues.withdraw(lambda item: item.number % 2 == 0)
    assert [item.number for item in out] == [2, 4]
    go.set()
    await queues.join()
    assert sorted(done) == [0, 1, 3, 5]
    assert queues.withdraw(lambda item: True) == []


def test_a_size_grows_with_success_and_halves_with_failure() -> None:
    size = Size(100)
    sizes = [size.now]
    for _ in range(4):
        size.succeeded(size.now)
        sizes.append(size.now)
    assert sizes == [16, 32, 64, 100, 100]
    size.failed(100)
    assert size.now == 50
    size.succeeded(7)
    assert size.now == 50  # a small batch says nothing about a large one
    size.succeeded(50)
    assert size.now == 56  # slowly, from where it failed last
    for _ in range(10):
        size.failed(100)
    assert size.now == 2
    assert Size(1).now == 1
    one = Size(1)
    one.failed(1)
    assert one.now == 1


def test_where_most_fail_there_are_no_batches_for_a_while() -> None:
    """Three failures in a row at the smallest size; afterwards one attempt, and one more failure is enough."""
    now = 0.0
    size = Size(4, clock=lambda: now)
    while size.now > 2:
        size.failed(size.now)
    for _ in range(STRIKES_SMALL - 1):
        size.failed(2)
        assert not size.resting
    size.succeeded(2)
    size.failed(2)
    assert not size.resting
    for _ in range(STRIKES_SMALL):
        size.failed(2)
    assert size.resting
    now += REST_S
    assert not size.resting
    size.failed(2)
    assert size.resting


def test_a_slow_handler_runs_alone_and_is_not_forgotten_for_ever() -> None:
    costs, handler = Costs(), object()
    assert costs.allows(handler, 2)
    assert not costs.allows(handler, 100)
    costs.took(handler, 0.0001)
    assert costs.allows(handler, 100)
    for _ in range(20):
        costs.took(handler, 5.0)
    assert not costs.allows(handler, 2)
    refused = 1
    while not costs.allows(handler, 2):
        refused += 1
    assert refused < 10
    assert costs.of(handler) <= BUDGET_S / 2


def test_a_pipeline_is_given_up_when_it_is_to_blame_and_tried_again_when_it_only_may_be() -> None:
    pipelines = Pipelines()
    known: Any = object()
    perhaps: Any = object()
    assert pipelines.failed([known], known=True) == [known]
    for _ in range(STRIKES - 1):
        assert pipelines.failed([perhaps], known=False) == []
    pipelines.worked(True, [perhaps])
    for _ in range(STRIKES - 1):
        assert pipelines.failed([perhaps], known=False) == []
    assert pipelines.failed([perhaps], known=False) == [perhaps]
    for _ in range(REST):
        pipelines.worked(False, [known, perhaps])
    assert set(pipelines.without) == {known}
