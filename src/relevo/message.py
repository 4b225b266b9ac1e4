"""The envelope: what is written to the outbox, carried by the relay and given to consumers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from relevo.errors import RefusedError
from relevo.naming import Kind as Kind
from relevo.naming import check_name as check_name

JSON: Final = "application/json"

MESSAGE_BYTES_MAX: Final = 1_000_000
"""Default limit for payload, key and headers together, in bytes. Kafka's own default (``message.max.bytes``) is
1,048,588 for the whole record batch; the rest is room for the record's framing and the CloudEvents headers."""

_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}\Z")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message, already encoded. Frozen: attempts, receipts and leases belong to the delivery, not to it.

    ``event_id``: UUIDv7, the identity, never used for order. ``payload``: encoded bytes, ``None`` for a tombstone
    (distinct from ``b""``). ``key``: bytes that decide order, ``None`` for none. ``created_at``: aware, UTC.
    ``aggregate_type`` and ``aggregate_id`` are ``None`` where they equal topic and key (their defaults).
    """

    event_id: UUID
    type: str
    topic: str
    payload: bytes | None
    created_at: datetime
    kind: Kind = "event"
    schema_version: int = 1
    key: bytes | None = None
    content_type: str = JSON
    headers: Mapping[str, str] = {}
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    aggregate_version: int | None = None

    def size_bytes(self) -> int:
        """Bytes of payload, key and headers: what counts against the size limit."""
        return len(self.payload or b"") + len(self.key or b"") + headers_bytes(self.headers)


def headers_bytes(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value.encode()) for name, value in headers.items())


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``headers`` if they survive every broker unchanged; raise ``RefusedError`` with the name if not."""
    for name, value in headers.items():
        if not _HEADER_NAME.match(name):
            raise RefusedError(
                f"header name {name!r} is not usable: lower-case letters, digits and _ . - are allowed, 100 at most",
                path=f"headers[{name!r}]",
            )
        if name.startswith(("ce_", "relevo-")) or name == "content-type":
            raise RefusedError(
                f"header {name!r} is reserved: it is set by CloudEvents or by Relevo. Give it another name",
                path=f"headers[{name!r}]",
            )
        if not isinstance(value, str):
            raise RefusedError(
                f"header {name!r} must be a string, not {type(value).__name__}", path=f"headers[{name!r}]"
            )
        check_text(value, f"headers[{name!r}]")
    return headers


def check_text(value: str, path: str) -> None:
    """Raise ``RefusedError`` for text that PostgreSQL or JSON readers cannot keep: NUL or a lone surrogate."""
    if "\x00" in value:
        raise RefusedError("a NUL character (U+0000) cannot be stored by PostgreSQL's text and jsonb", path=path)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"a lone surrogate (U+{ord(value[error.start]):04X}) is not text", path=path) from None
