"""A row on its way out is the message it stands for, on the wire and decoded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo import wire
from relevo.message import Message
from relevo.outgoing import Outgoing
from relevo.storage.rows import page_reader

SOURCE = b"urn:relevo:shop"
_text = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=20)

messages = st.builds(
    Message,
    event_id=st.uuids(),
    type=_text,
    topic=_text,
    payload=st.none() | st.binary(max_size=50),
    created_at=st.datetimes(datetime(1970, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC)),
    kind=st.sampled_from(["event", "command"]),
    schema_version=st.integers(1, 99),
    key=st.none() | st.binary(max_size=20),
    content_type=st.sampled_from(["application/json", "application/x-protobuf"]),
    headers=st.dictionaries(_text, _text, max_size=3),
    aggregate_type=st.none() | _text,
    aggregate_id=st.none() | _text,
    aggregate_version=st.none() | st.integers(0, 2**63 - 1),
)


def row_of(message: Message) -> Outgoing:
    """As the page's query gives it."""
    return Outgoing(
        topic=message.topic,
        key=message.key,
        payload=message.payload,
        id_text=str(message.event_id).encode(),
        time_text=message.created_at.isoformat().encode(),
        kind=message.kind,
        type=message.type,
        schema_version=message.schema_version,
        content_type=message.content_type,
        aggregate_type=message.aggregate_type,
        aggregate_id=message.aggregate_id,
        aggregate_version=message.aggregate_version,
        headers_text=msgspec.json.encode(message.headers).decode() if message.headers else None,
    )


@given(messages)
def test_the_same_on_the_wire_and_decoded(message: Message) -> None:
    row = row_of(message)
    assert wire.encode(row, SOURCE) == wire.encode(message, SOURCE)
    assert row.message() == message
    assert row.size_bytes() == message.size_bytes()


@given(messages)
def test_what_is_encoded_arrives(message: Message) -> None:
    """Through the text of the row, with the fractions of a second as a database writes them."""
    headers = wire.encode(row_of(message), SOURCE)
    names = [name for name, _ in headers if name.startswith("ce_")]
    assert len(names) == len(set(names))
    found = wire.decode(
        message.topic, message.key, message.payload, headers, arrived_at=datetime.now(UTC), shard="0", position=1
    )
    assert (found.event_id, found.type, found.kind) == (message.event_id, message.type, message.kind)
    assert (found.schema_version, found.created_at) == (message.schema_version, message.created_at)


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        (b"2026-11-29T22:11:00+00:00", 0),
        (b"2026-11-29T22:11:00.5+00:00", 500_000),
        (b"2026-11-29T22:11:00.123456+00:00", 123_456),
    ],
)
def test_fractions_of_a_second(text: bytes, microsecond: int) -> None:
    """PostgreSQL writes no trailing zeros."""
    values: dict[str, Any] = {"id_text": str(UUID(int=1)).encode(), "time_text": text, "headers_text": None}
    row = row_of(Message(event_id=UUID(int=1), type="t", topic="t", payload=None, created_at=datetime.now(UTC)))
    assert row._replace(**values).created_at == datetime(2026, 11, 29, 22, 11, 0, microsecond, UTC)


@pytest.mark.parametrize(
    "text", ["[1]", "null", "{", f'{{"n": 1{"0" * 400}.5}}', f'{{"n": {"[" * 100_000}{"]" * 100_000}}}']
)
def test_headers_that_nobody_can_read_are_found_where_the_row_is_read(text: str) -> None:
    """A trigger can write them; raised while a page is sent, they would stop every relay."""
    row = row_of(Message(event_id=UUID(int=1), type="t", topic="t", payload=None, created_at=datetime.now(UTC)))
    good, bad = (1, 2, *row._replace(headers_text='{"n": 7}')), (2, 2, *row._replace(headers_text=text))
    found, unreadable = page_reader("postgresql")([good, bad])
    assert list(unreadable) == [1]
    assert found[0].headers == {"n": "7"}
    assert "seq 2" in unreadable[1]
    assert found[1].event_id == UUID(int=1)


def test_the_fixed_part_is_not_shared_between_sources() -> None:
    message = Message(event_id=UUID(int=1), type="t", topic="t", payload=None, created_at=datetime.now(UTC))
    first, second = dict(wire.encode(message, b"urn:a")), dict(wire.encode(message, b"urn:b"))
    assert (first["ce_source"], second["ce_source"]) == (b"urn:a", b"urn:b")
