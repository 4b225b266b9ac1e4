"""The mark that is committed with a position of Kafka, and what a shard notices by its offsets."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from relevo.brokers.kafka.identity import mark_of, read_mark, replaced
from relevo.brokers.kafka.shard import Shard
from tests.unit.test_strangers import Record


@pytest.mark.parametrize("metadata", [None, "", "another tool's", "relevo", "relevo cluster=c", "topic=t"])
def test_metadata_of_others_is_no_mark(metadata: str | None) -> None:
    assert read_mark(metadata) is None


def test_a_topic_is_replaced_in_its_own_cluster_only() -> None:
    mark = mark_of("c", "t")
    assert read_mark(mark) == mark
    assert replaced(mark, mark_of("c", "u"))
    assert not replaced(mark, mark)
    assert not replaced(mark, mark_of("d", "u"))
    assert not replaced(mark_of("", "t"), mark_of("c", "u"))  # the cluster was not known


def shard(start: int, *positions: int, mark: str | None = None) -> tuple[Shard, list[Any]]:
    told: list[Any] = []
    found = Shard("t", 0, count(1), start=start, mark=mark, noticing=told.append)
    found.arrived.extend(Record(position) for position in positions)
    return found, told


def test_a_gap_is_kept_to_be_looked_at() -> None:
    it, told = shard(5, 5, 6, 9, 10, 20)
    it.take(9)
    assert list(it.gaps) == [(7, 9), (11, 20)] and told == [None, None]


def test_a_group_without_a_position_has_no_gap() -> None:
    it, told = shard(-1, 50, 51)
    it.take(9)
    assert not it.gaps and not told


def test_the_first_record_may_lie_before_the_group_s_position() -> None:
    it, told = shard(100, 0, 1, mark="m")
    found = it.take(9)
    assert told[0] is not None and "100 was expected and 0 came" in told[0]
    assert [delivery.generation for delivery in found] == [2, 2]
    assert it.place == ("t", 0, 0, None) and it.progress.unsaved  # what the group has is replaced at once


def test_what_has_arrived_of_the_old_log_is_delivered_before_the_new_one() -> None:
    it, _ = shard(10, 10, 11, 12, mark="old")
    (first,) = it.take(1)
    it.begin_anew("new")
    it.arrived.extend([Record(0), Record(1)])
    rest = it.take(9)
    assert [delivery.position for delivery in rest] == [11, 12, 0, 1]
    assert first.generation == rest[1].generation != rest[2].generation == it.generation
    for delivery in (first, *rest[:2]):
        it.settle(delivery)
    assert it.place == ("t", 0, 0, "new")
    it.settle(rest[2])
    assert it.place == ("t", 0, 1, "new")
