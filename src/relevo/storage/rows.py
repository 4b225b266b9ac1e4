"""Rows of message columns to ``Message``. The column order is that of the held copies and of the replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import product
from types import NoneType
from typing import Any, Final
from uuid import UUID

from relevo.ids import foreign_id
from relevo.message import Message
from relevo.outgoing import Outgoing, Sendable, check_headers_text, headers_from
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.times import EPOCH, clamped, from_ms, from_us
from relevo.total import text_of

_new = tuple.__new__


def to_time(value: datetime | int) -> datetime:
    """A database time as an aware UTC datetime: PostgreSQL's as it is, SQLite's from integer milliseconds. Clamped."""
    return clamped(value) if isinstance(value, datetime) else from_ms(value)


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


_TEXT, _BYTES, _NUMBER = (str, NoneType), (bytes, NoneType), (int, NoneType)
_SHAPES: Final = frozenset(
    product(
        *((str,), (str,), (str,), _BYTES, (str,), (int,), _TEXT, _TEXT, _NUMBER, _BYTES, (str,), _TEXT, (int,)),
    )
)
"""The types of a row's values. SQLite keeps any value in any column where no check is declared."""


def _sqlite_message(row: Sequence[Any]) -> Message:
    row = row[:13]
    if (shape := tuple(map(type, row))) not in _SHAPES:
        raise ValueError("types of its values: " + ", ".join(each.__name__ for each in shape))
    event_id, *middle, created_at = row
    return _postgres_message((UUID(event_id), *middle, to_time(created_at)))


def stand_in(seq: int, row: Sequence[Any], *, payload: object = None) -> Message:
    """What can be said of a row that cannot be read: topic and key, so that it is held in its place. Never sent.
    ``payload``: to be looked at."""
    event_id, _, topic, key, type_ = row[:5]
    topic = text_of(topic)
    try:
        identity = UUID(str(event_id))
    except ValueError:
        identity = foreign_id("seq", topic, str(seq))
    return Message(
        event_id=identity,
        type=text_of(type_),
        topic=topic,
        payload=payload if isinstance(payload, bytes) else None,
        created_at=EPOCH,
        key=key if isinstance(key, bytes) else None if key is None else str(key).encode(),
    )


def held_copy(row: Sequence[Any]) -> tuple[Message, str | None]:
    """The message of a row of ``held.first``, and why it cannot be read, if so: a stand-in is in its place then."""
    try:
        return _held_message(row), None
    except Exception as error:  # noqa: BLE001 - a row that was written by hand
        stood = stand_in(row[0], (row[1], None, row[3], row[4], row[5]))
        return stood, f"the row with held_seq {row[0]} cannot be read: {error}"


def _held_message(row: Sequence[Any]) -> Message:
    return Message(
        event_id=UUID(row[1]),
        kind=row[2],
        topic=row[3],
        key=None if row[4] is None else bytes(row[4]),
        type=row[5],
        schema_version=row[6],
        aggregate_type=row[7],
        aggregate_id=row[8],
        aggregate_version=row[9],
        payload=None if row[10] is None else bytes(row[10]),
        content_type=row[11],
        headers=headers_from(row[12] or None),
        created_at=from_us(int(row[13])),
    )


def message_reader(dialect: Dialect) -> Callable[[Sequence[Any]], Message]:
    """The function that turns a row of the thirteen message columns of ``dialect`` into a ``Message``."""
    return _postgres_message if dialect == "postgresql" else _sqlite_message


def _sent_from(row: Sequence[Any]) -> Outgoing:
    """The table's types have checked everything but what the headers are."""
    if row[12] is not None:
        check_headers_text(row[12])
    return _new(Outgoing, row)


def page_reader(dialect: Dialect) -> Callable[[Rows], tuple[list[Sendable], dict[int, str]]]:
    """The function that turns a page of the outbox, rows of ``(seq, lane, *thirteen columns, …)``, into what is sent
    and what cannot be read (index → why). PostgreSQL's columns are ``Outgoing``'s, SQLite's ``message_reader``'s."""
    on_postgres = dialect == "postgresql"
    read: Callable[[Sequence[Any]], Sendable] = _sent_from if on_postgres else _sqlite_message

    def page(rows: Rows) -> tuple[list[Sendable], dict[int, str]]:
        try:
            if on_postgres:  # as ``read`` does, without a call for each row: this is the relay's hot path
                for row in rows:
                    if row[14] is not None:
                        check_headers_text(row[14])
                return [_new(Outgoing, row[2:15]) for row in rows], {}
            return [read(row[2:15]) for row in rows], {}
        except Exception:  # noqa: BLE001, S110 - at least one row was written by hand, around every check
            pass
        messages: list[Sendable] = []
        unreadable: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                messages.append(read(row[2:15]))
            except Exception as error:  # noqa: BLE001 - this row alone
                unreadable[index] = f"the row with seq {row[0]} cannot be read: {error}"
                event_id, _, topic, key, type_ = row[2:7]
                if on_postgres:
                    topic, key, _, event_id, *_, type_ = row[2:9]
                    event_id = bytes(event_id).decode("utf-8", "replace")
                messages.append(stand_in(row[0], (event_id, None, topic, key, type_)))
        return messages, unreadable

    return page
