"""The parts of the broker `postgresql` that need no server: a lane's cursor, a group's shares, options, times."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest

from relevo.brokers import broker_for
from relevo.brokers.postgres.lane import Lane
from relevo.brokers.postgres.rows import TIME, row
from relevo.errors import ConfigError
from relevo.ids import uuid7
from relevo.message import Message
from relevo.ports.broker import Delivery
from relevo.storage.cursors import EVERY, Cursor
from relevo.storage.grouping import share
from relevo.storage.readers import Part

BEFORE = Cursor("10:10:", 100)
AFTER = Cursor("20:20:", 150)


def a_lane(*seqs: int) -> Lane:
    """One page was read, which held ``seqs``: those up to 100 are late ones."""
    lane = Lane(3, 1, BEFORE)
    lane.read(Part(EVERY, frozenset({1, 3}), (90, *seqs), BEFORE, "20:20:", AFTER), seqs)
    return lane


def delivery(seq: int) -> Delivery:
    message = Message(event_id=uuid7(), type="a.b", topic="a", payload=b"", created_at=datetime.now(UTC))
    return Delivery(message=message, shard="3", position=seq, generation=1)


def test_only_a_contiguous_prefix_moves_the_cursor() -> None:
    lane = a_lane(101, 105, 109)
    lane.settle(105)
    assert (lane.cursor, lane.worked) == (BEFORE, False)
    lane.settle(101)
    assert lane.cursor == Cursor("20:20:", 105) and lane.worked
    lane.settle(109)
    lane.settle(109)
    assert lane.cursor == AFTER


def test_a_late_row_that_is_not_settled_keeps_its_window_open() -> None:
    """FAILURES rows 1-3: 40 and 60 came late. With 40 settled the cursor keeps its number and says up to where its
    window was settled; a main row behind them moves it only once both are."""
    lane = a_lane(40, 60, 109)
    lane.settle(109)
    lane.settle(40)
    assert lane.cursor == Cursor("10:10:", 100, "20:20:", 40)
    lane.settle(60)
    assert lane.cursor == AFTER


def test_pages_without_rows_wait_behind_what_is_not_settled() -> None:
    lane = a_lane(101)
    for number in range(151, 1_000):
        at = Cursor(f"{number}:{number}:", number)
        lane.read(Part(EVERY, frozenset({3}), (), lane.read_at, at.snapshot, at), ())
    assert lane.cursor == BEFORE and lane.read_at.high_water == 999
    assert len(lane._parts) == 2
    lane.settle(101)
    assert lane.cursor == Cursor("999:999:", 999)


def test_what_is_handed_back_comes_in_the_order_of_delivery() -> None:
    """That of a late row's number would be another: it was delivered after 101."""
    lane = a_lane(101)
    lane.read(Part(EVERY, frozenset({3}), (40, 160), AFTER, "30:30:", Cursor("30:30:", 160)), (40, 160))
    for seq in (160, 40, 101, 40):
        lane.hand_back(delivery(seq) if seq != 40 else LATE)
    assert [each.position for each in lane.returned] == [101, 40, 160]
    lane.hand_back(delivery(7))
    assert len(lane.returned) == 3


LATE = delivery(40)


def test_who_does_not_read_all_topics_gets_no_lane() -> None:
    """Its lanes would pass the other's messages by. ``living`` is in the order they joined."""
    old, new, newer = (UUID(int=number) for number in range(3))
    few, many = frozenset({"a"}), frozenset({"a", "b"})
    assert share(old, {old: few, new: many}, 64) == (set(), ["b"])
    assert share(new, {old: few, new: many}, 64) == (set(range(64)), [])
    back = {new: many, newer: few}  # the older version was brought back: both read what it reads
    mine, _ = share(new, back, 64)
    theirs, _ = share(newer, back, 64)
    assert mine | theirs == set(range(64)) and not mine & theirs and mine and theirs


def test_a_message_keeps_its_own_time_in_a_header() -> None:
    """Also one that was handed over twice: the first time is its own."""
    message = delivery(1).message
    headers = msgspec.json.decode(row(message)["headers"])
    assert headers == {TIME: message.created_at.isoformat()}
    again = msgspec.structs.replace(message, headers={TIME: "2020-01-01T00:00:00+00:00"})
    assert msgspec.json.decode(row(again)["headers"])[TIME].startswith("2020")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lease": 3}, "did you mean 'lease_s'"),
        ({"lease_s": 0}, "above 0"),
        ({"poll_min_s": 2.0}, "poll_max_s not below"),
        ({"prefix": "Relevo"}, "not usable"),
        ({"send_timeout_s": 3}, "relay.send_timeout_s"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        broker_for("postgresql://localhost/shop", options)  # type: ignore[arg-type]


def test_no_password_is_shown() -> None:
    broker = broker_for("postgresql://shop:secret@localhost/shop")
    assert "secret" not in broker.url + repr(broker)
