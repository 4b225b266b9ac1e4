"""From event to message, and the pieces of the append that need no database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints
from uuid import UUID, uuid4

import msgspec
import pytest

from relevo import Message, Outbox
from relevo.errors import ConfigError, RefusedError
from relevo.ids import uuid7
from relevo.outbox.building import build, check
from relevo.outbox.options import AddArguments, AddOptions
from relevo.script import Rows, Statement, run
from relevo.storage import appending
from relevo.storage.handles.adapt import adapt, from_ms, to_ms
from tests.support.events import ChargeCard, OrderPlaced


def test_what_follows_from_the_declaration_and_what_overrides_it() -> None:
    """Topic and key of the declaration, or of the call; key=None is no key."""
    made = build(ChargeCard(7), 1000)
    assert (made.topic, made.type, made.kind, made.key) == ("billing", "billing.charge", "command", b"7")
    other_id = uuid4()
    other = build(ChargeCard(7), 1000, AddOptions(topic="t", key=None, event_id=other_id, aggregate_id=other_id))
    assert (other.topic, other.key, other.event_id, other.aggregate_id) == ("t", None, other_id, str(other_id))
    assert build(ChargeCard(7), 1000, AddOptions(key="")).key == b""


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "a b"},
        {"key": 1.5},
        {"aggregate_version": -1},
        {"aggregate_version": 2**63},
        {"aggregate_version": True},
        {"aggregate_version": "1"},
        {"aggregate_type": "a\0"},
        {"aggregate_id": "\ud800"},
        {"event_id": "6f1d7f5e-3b52-5c1d-9b0a-8f5f0a4c2e11"},
        {"headers": {"a": 1}},
    ],
)
def test_refused_arguments(wrong: dict[str, Any]) -> None:
    """Refused at the call, not by the database, the relay or the broker."""
    with pytest.raises(RefusedError):
        build(OrderPlaced(1), 1000, AddOptions(**wrong))


def test_a_class_is_no_event() -> None:
    """The class instead of an instance."""
    with pytest.raises(RefusedError, match="give an instance"):
        build(OrderPlaced, 1000)


@pytest.mark.parametrize(
    "wrong", [{"type": ""}, {"topic": "ä"}, {"schema_version": 0}, {"kind": "fact"}, {"content_type": "\0"}]
)
def test_raw_messages_are_checked_too(wrong: dict[str, Any]) -> None:
    """`add_message` takes nothing that `add` would refuse."""
    message = Message(event_id=uuid7(), type="a.b", topic="a", payload=None, created_at=datetime.now(UTC))
    with pytest.raises(RefusedError):
        check(msgspec.structs.replace(message, **wrong), 1000)


def test_the_description_is_checked_where_it_is_written() -> None:
    """A prefix that is no identifier, a limit below one."""
    for wrong in ({"prefix": 'a"'}, {"schema": "A"}, {"message_bytes_max": 0}):
        with pytest.raises(ConfigError):
            Outbox(**wrong)  # type: ignore[arg-type]


def statements(messages: list[Message], dialect: Any) -> list[Statement]:
    found: list[Statement] = []

    def execute(statement: Statement) -> Rows:
        found.append(statement)
        return []

    run(appending.append(messages, dialect), execute)
    return found


def test_chunks_by_rows_and_by_bytes() -> None:
    """At most 10,000 rows and 8 MB in one INSERT on PostgreSQL; one row on SQLite; nothing for nothing."""
    small = build(OrderPlaced(1), 1000)
    sizes = [len(each.params["event_id"]) for each in statements([small] * 20_200, "postgresql")]
    assert sizes == [10_000, 10_000, 200]
    large = build(OrderPlaced(1, "x" * 900_000), 1_000_000)
    shapes = [
        (each.name, len(each.params["event_id"]) if each.name == "append.many" else 1)
        for each in statements([large] * 9, "postgresql")
    ]
    assert shapes == [("append.many", 8), ("append.one", 1)]
    assert [each.name for each in statements([small] * 3, "sqlite")] == ["append.one"] * 3
    assert statements([], "postgresql") == []


def test_adapting_for_sqlite() -> None:
    """UUIDs as text, times as milliseconds, lists as JSON, booleans as integers. On PostgreSQL ids and times are text,
    which the statements cast, so that no codec of the application's is asked."""
    some_id = UUID(int=7)
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1, microseconds=999)
    params = {"a": some_id, "b": moment, "c": [1, some_id], "d": True, "e": None, "f": b"\0", "g": "x", "h": 1.5}
    plain = {**params, "a": str(some_id), "b": moment.isoformat(), "c": [1, str(some_id)]}
    assert adapt("postgresql", params) == plain
    assert adapt("postgresql", {"empty": [], "nulls": [None, None]}) == {"empty": None, "nulls": None}
    assert adapt("sqlite", params) == {
        "a": str(some_id),
        "b": 1767225600001,
        "c": f'[1,"{some_id}"]',
        "d": 1,
        "e": None,
        "f": b"\0",
        "g": "x",
        "h": 1.5,
    }
    assert type(adapt("sqlite", {"d": True})["d"]) is int
    for milliseconds in (0, -1, 1767225600001, 32503680000000):
        assert to_ms(from_ms(milliseconds)) == milliseconds


def test_time_of_an_id() -> None:
    """A UUIDv7 knows its millisecond; another version, or a year no datetime has, gives no bound."""
    made = appending.made_at(uuid7())
    assert made is not None
    assert abs(made - datetime.now(UTC)) < timedelta(minutes=1)
    assert appending.made_at(uuid4()) is None
    assert appending.made_at(UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")) is None


def test_the_arguments_are_the_options() -> None:
    """What the type checker knows of ``Outbox.add`` and what it takes are the same, type by type."""
    assert get_type_hints(AddArguments) == get_type_hints(AddOptions)


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="topik"):
        Outbox().add(object(), OrderPlaced(1), topik="a")  # type: ignore[call-overload]
