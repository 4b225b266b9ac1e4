"""Messages without a table: written into the write-ahead log alone, in the caller's transaction, by
``pg_logical_emit_message``. What is written, how it is read again, and the script that writes it.

A publication does not filter such messages, so the channel (their prefix) says whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from relevo.catalog import Catalog
from relevo.errors import RefusedError, SchemaError
from relevo.ids import bucket_of
from relevo.message import Kind, Message, check_headers, check_name, check_text
from relevo.outgoing import Outgoing, headers_from
from relevo.script import Script, Statement

ROWS_MAX = 500
"""Messages of one statement."""
VERSION = 1


class Emitted(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The content, as MessagePack: an array that begins with a version. The time is the transaction's, by the
    database's clock, and stands in the stream."""

    version: int
    id: bytes
    bucket: int
    kind: Kind
    topic: str
    key: bytes | None
    type: str
    schema_version: int
    aggregate_type: str | None
    aggregate_id: str | None
    aggregate_version: int | None
    payload: bytes | None
    content_type: str
    headers: str | None


_decode = msgspec.msgpack.Decoder(Emitted).decode
_encode = msgspec.msgpack.Encoder().encode


def channel(catalog: Catalog) -> str:
    """The prefix under which messages for this installation are emitted."""
    return f"{catalog.schema}.{catalog.prefix}outbox" if catalog.schema else f"{catalog.prefix}outbox"


def content(message: Message) -> bytes:
    headers = msgspec.json.encode(message.headers).decode() if message.headers else None
    return _encode(
        Emitted(
            VERSION,
            str(message.event_id).encode(),
            bucket_of(message.key, message.event_id),
            message.kind,
            message.topic,
            message.key,
            message.type,
            message.schema_version,
            message.aggregate_type,
            message.aggregate_id,
            message.aggregate_version,
            message.payload,
            message.content_type,
            headers,
        )
    )


def read(content: bytes, time_text: bytes) -> tuple[int, Outgoing]:
    """(bucket, message) of an emitted content. Raises ``ValueError`` for anything else."""
    each = _decode(content)
    if each.version != VERSION:
        raise ValueError(f"version {each.version} of emitted messages is not known to this version of Relevo")
    _check(each)
    return each.bucket, Outgoing(
        each.topic,
        each.key,
        each.payload,
        each.id,
        time_text,
        each.kind,
        each.type,
        each.schema_version,
        each.content_type,
        each.aggregate_type,
        each.aggregate_id,
        each.aggregate_version,
        each.headers,
    )


def _check(each: Emitted) -> None:
    """What a table's types and constraints would refuse. Raises ``ValueError``."""
    if not 0 <= each.bucket < 1024 or not 1 <= each.schema_version < 2**31:
        raise ValueError("bucket or schema version of an emitted message is out of range")
    if str(UUID(each.id.decode())).encode() != each.id:
        raise ValueError("the id of an emitted message is not written as a UUID is")
    if each.aggregate_version is not None and not 0 <= each.aggregate_version < 2**63:
        raise ValueError("the aggregate version of an emitted message is out of range")
    try:
        check_name("topic", each.topic)
        check_name("type", each.type)
        for name in ("content_type", "aggregate_type", "aggregate_id"):
            text = getattr(each, name)
            if text is not None:
                check_text(text, name)
        if each.headers is not None:
            check_headers(headers_from(each.headers))
    except (RefusedError, AttributeError) as error:
        raise ValueError(str(error)) from None


def emit(contents: Sequence[bytes], catalog: Catalog) -> Script[None]:
    """Write contents in this order, in the surrounding transaction. Raises ``SchemaError`` where no slot reads them."""
    name = channel(catalog)
    for start in range(0, len(contents), ROWS_MAX):
        rows = yield Statement("wal.emit", {"channel": name, "contents": list(contents[start : start + ROWS_MAX])})
        if not rows[0][1]:
            raise SchemaError(
                "nobody reads events without a table here: the replication slot is missing or lost, so this event "
                "would be lost with it. Roll back, and run: relevo slot create (relay.source = 'wal'); or let the "
                "Outbox write to its table"
            )
