"""CloudEvents headers: round trips, and strangers' messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from relevo.ids import uuid7
from relevo.message import Message
from relevo.wire import decode, encode

SOURCE = b"urn:relevo:test"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
names = st.from_regex(r"[A-Za-z0-9._-]{1,30}\Z", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
header_names = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,20}\Z", fullmatch=True).filter(
    lambda name: not name.startswith("ce_") and name != "content-type"
)
messages = st.builds(
    Message,
    event_id=st.uuids(),
    type=names,
    topic=names,
    payload=st.none() | st.binary(max_size=50),
    created_at=st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC)),
    kind=st.sampled_from(["event", "command"]),
    schema_version=st.integers(1, 2**31 - 1),
    key=st.none() | st.binary(max_size=20),
    content_type=st.sampled_from(["application/json", "application/octet-stream"]),
    headers=st.dictionaries(header_names, texts, max_size=4),
    aggregate_type=st.none() | texts,
    aggregate_id=st.none() | texts,
    aggregate_version=st.none() | st.integers(0, 10**18),
)


def arrive(message: Message, headers: Any) -> Message:
    return decode(message.topic, message.key, message.payload, headers, arrived_at=NOW, shard="0", position=1)


@given(messages)
def test_round_trip(message: Message) -> None:
    """FAILURES row 20: whatever a message holds is the same after the wire: None and b"" payloads, keys, non-ASCII
    headers, versions."""
    assert arrive(message, encode(message, SOURCE)) == message


def plain(**changes: Any) -> Message:
    message = Message(event_id=uuid7(), type="a.b", topic="a", payload=b"{}", created_at=NOW)
    return msgspec.structs.replace(message, **changes)


def test_required_attributes_are_there() -> None:
    """CloudEvents 1.0 wants specversion, id, source and type; defaults of ours are not sent."""
    message = plain()
    headers = dict(encode(message, SOURCE))
    assert headers == {
        "ce_specversion": b"1.0",
        "ce_id": str(message.event_id).encode(),
        "ce_source": SOURCE,
        "ce_type": b"a.b",
        "ce_time": b"2026-01-02T03:04:05+00:00",
        "content-type": b"application/json",
    }


def test_a_stranger_without_headers_has_a_stable_id() -> None:
    """No CloudEvents at all: id of topic, shard and position, so a redelivery is recognised; type ""."""
    first = decode("t", None, b"x", [], arrived_at=NOW, shard="0", position=7)
    again = decode("t", None, b"x", [], arrived_at=NOW, shard="0", position=7)
    other = decode("t", None, b"x", [], arrived_at=NOW, shard="0", position=8)
    assert first.event_id == again.event_id != other.event_id
    assert (first.type, first.created_at) == ("", NOW)


def test_a_stranger_with_an_id_that_is_no_uuid() -> None:
    """UUIDv5 of source and id: the same wherever it arrives."""
    headers = [("CE_ID", b"order-7"), ("ce_source", b"/legacy")]
    one = decode("t", None, b"", headers, arrived_at=NOW, shard="0", position=1)
    two = decode("t", None, b"", headers, arrived_at=NOW, shard="5", position=9)
    three = decode("t", None, b"", [headers[0]], arrived_at=NOW, shard="0", position=1)
    assert one.event_id == two.event_id != three.event_id
    assert one.event_id.version == 5


@given(
    st.lists(
        st.tuples(st.sampled_from(["ce_id", "ce_time", "ce_schemaversion", "ce_aggregateversion", "x"]), st.binary())
    )
)
def test_never_raises_for_a_stranger(headers: list[tuple[str, bytes]]) -> None:
    """Malformed attributes get defaults."""
    message = decode("t", b"k", None, headers, arrived_at=NOW, shard="0", position=1)
    assert isinstance(message.event_id, UUID)
    assert message.created_at.tzinfo is not None
    assert message.schema_version >= 1


def test_a_null_header_value() -> None:
    """Kafka headers may be null; they arrive as an empty text."""
    headers: Any = [("x", None)]
    assert decode("t", None, None, headers, arrived_at=NOW, shard="0", position=1).headers == {"x": ""}


def test_texts_are_what_a_database_can_keep() -> None:
    """FAILURES row 38, from a stranger: NULs become U+FFFD, a time that is none in UTC and a version too large for its
    column get the default; key and payload stay as they are."""
    headers = [
        ("ce_type", b"a\x00b"),
        ("no\x00te", b"x\x00y"),
        ("ce_time", b"0001-01-01T00:00:00+14:00"),
        ("ce_schemaversion", b"3000000000"),
        ("ce_aggregateversion", b"3000000000"),
    ]
    now = datetime.now(UTC)
    message = decode("t", b"k\x00", b"p\x00", headers, arrived_at=now, shard="t/0", position=1)
    assert (message.type, dict(message.headers)) == ("a\ufffdb", {"no\ufffdte": "x\ufffdy"})
    assert (message.key, message.payload, message.created_at) == (b"k\x00", b"p\x00", now)
    assert (message.schema_version, message.aggregate_version) == (1, 3_000_000_000)
