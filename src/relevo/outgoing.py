"""A message on its way out: a row of the outbox as it was read, decoded only where somebody asks.

The relay passes bytes through. Of most messages it needs topic, key and payload, and the text of id and time for the
wire; making the objects behind them (a UUID, a datetime, a dict) costs several times what carrying them does. So a page
holds rows, and a row answers to the names of ``Message``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from relevo.message import Kind, Message, headers_bytes
from relevo.times import LATEST, parsed

_NO_HEADERS: Mapping[str, str] = {}
_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode
_decode_texts = msgspec.json.Decoder(dict[str, str]).decode


def headers_from(text: str | None) -> Mapping[str, str]:
    """Headers from their JSON text. Values that a trigger wrote as numbers or booleans become text. Raises
    ``ValueError`` for what is no object, or beyond all bounds."""
    if text is None:
        return _NO_HEADERS
    try:
        return {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in _decode_headers(text).items()
        }
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_headers_text(text: str) -> None:
    """Raise ``ValueError`` if ``headers_from`` would. Asked where a row is read: where it is sent it is too late."""
    try:
        _decode_texts(text)
    except ValueError:
        try:
            headers_from(text)
        except ValueError as error:
            raise ValueError(f"the headers are no JSON object that can be read: {error}: {text:.40}") from None


class _Columns(NamedTuple):
    topic: str
    key: bytes | None
    payload: bytes | None
    id_text: bytes
    """The event's id as text, as it stands on the wire."""
    time_text: bytes
    """RFC 3339, UTC."""
    kind: Kind
    type: str
    schema_version: int
    content_type: str
    aggregate_type: str | None
    aggregate_id: str | None
    aggregate_version: int | None
    headers_text: str | None
    """A JSON object."""


class Outgoing(_Columns):
    """One row. ``tuple.__new__(Outgoing, row)`` makes it and checks nothing: the table's types did."""

    __slots__ = ()

    @property
    def event_id(self) -> UUID:
        return UUID(self.id_text.decode())

    @property
    def created_at(self) -> datetime:
        return parsed(self.time_text.decode()) or LATEST  # PostgreSQL also knows "infinity" and the year 10000

    @property
    def headers(self) -> Mapping[str, str]:
        """Whoever read the row asked ``check_headers_text``."""
        return headers_from(self.headers_text)

    def size_bytes(self) -> int:
        """As ``Message.size_bytes``."""
        return len(self.payload or b"") + len(self.key or b"") + headers_bytes(self.headers)

    def message(self) -> Message:
        """All of it, decoded."""
        return Message(
            event_id=self.event_id,
            type=self.type,
            topic=self.topic,
            payload=self.payload,
            created_at=self.created_at,
            kind=self.kind,
            schema_version=self.schema_version,
            key=self.key,
            content_type=self.content_type,
            headers=self.headers,
            aggregate_type=self.aggregate_type,
            aggregate_id=self.aggregate_id,
            aggregate_version=self.aggregate_version,
        )


Sendable = Message | Outgoing
"""What a publisher takes: both have the same names."""
