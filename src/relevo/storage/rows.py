"""Rows of message columns to ``Message``. The column order is that of ``mark.take`` from ``event_id`` on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from relevo.ids import foreign_id
from relevo.message import Message
from relevo.ports.database import Dialect

_NO_HEADERS: Mapping[str, str] = {}
_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode


def headers_from(text: str | None) -> Mapping[str, str]:
    """Headers from their JSON text. Values that a trigger wrote as numbers or booleans become text."""
    if text is None:
        return _NO_HEADERS
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in _decode_headers(text).items()
    }


def to_time(value: datetime | int) -> datetime:
    """A database time as an aware UTC datetime: PostgreSQL's as it is, SQLite's from integer milliseconds."""
    return value if isinstance(value, datetime) else datetime.fromtimestamp(value / 1000, UTC)


def _postgres_message(row: Sequence[Any]) -> Message:
    return Message(
        event_id=row[0],
        kind=row[1],
        topic=row[2],
        key=row[3],
        type=row[4],
        schema_version=row[5],
        aggregate_type=row[6],
        aggregate_id=row[7],
        aggregate_version=row[8],
        payload=row[9],
        content_type=row[10],
        headers=headers_from(row[11]),
        created_at=row[12],
    )


def _sqlite_message(row: Sequence[Any]) -> Message:
    event_id, *middle, created_at = row[:13]
    return _postgres_message((UUID(event_id), *middle, to_time(created_at)))


def stand_in(seq: int, row: Sequence[Any]) -> Message:
    """What can be said of a row that cannot be read: topic and key, so that it is held in its place. Never sent."""
    event_id, _, topic, key, type_ = row[:5]
    try:
        identity = UUID(str(event_id))
    except ValueError:
        identity = foreign_id("seq", str(topic), str(seq))
    return Message(
        event_id=identity,
        type=str(type_),
        topic=str(topic),
        payload=None,
        created_at=datetime(1970, 1, 1, tzinfo=UTC),
        key=key if isinstance(key, bytes) else None if key is None else str(key).encode(),
    )


def message_reader(dialect: Dialect) -> Callable[[Sequence[Any]], Message]:
    """The function that turns a row of the thirteen message columns of ``dialect`` into a ``Message``."""
    return _postgres_message if dialect == "postgresql" else _sqlite_message
