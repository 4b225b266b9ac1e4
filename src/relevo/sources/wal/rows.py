"""From a row of the stream to what the relay sends. The table's shape is checked once per shape, not per row."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from struct import Struct
from typing import Any

from relevo.outgoing import Outgoing, check_headers_text
from relevo.sources.wal.protocol import DecodeError, Relation, Row, Text

_SECOND_US = 1_000_000
_FIXED_MAX = 10_000
_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_I16, _I32, _I64 = Struct(">h").unpack, Struct(">i").unpack, Struct(">q").unpack

# Columns and the types whose binary format is read here, by oid: int8, uuid, int2, int4, text, varchar, bytea, jsonb,
# timestamptz.
_INT8, _UUID, _INT2, _INT4, _TEXT, _BYTEA, _JSONB, _TIME = (
    (20,),
    (2950,),
    (21,),
    (23,),
    (25, 1043),
    (17,),
    (3802,),
    (1184,),
)
COLUMNS: dict[str, tuple[int, ...]] = {
    "seq": _INT8,
    "bucket": _INT2,
    "topic": _TEXT,
    "key": _BYTEA,
    "payload": _BYTEA,
    "event_id": _UUID,
    "created_at": _TIME,
    "kind": _TEXT,
    "type": _TEXT,
    "schema_version": _INT4,
    "content_type": _TEXT,
    "aggregate_type": _TEXT,
    "aggregate_id": _TEXT,
    "aggregate_version": _INT8,
    "headers": _JSONB,
}
"""In the order of ``Outgoing`` behind ``seq`` and ``bucket``."""

ReadRow = Callable[[Row], tuple[int, int, Outgoing]]
"""(seq, bucket, message) of a row. Raises ``ValueError`` for a row that cannot be read."""


def misfit(relation: Relation) -> str | None:
    """Why rows of this shape cannot be read, ``None`` if they can."""
    types = {column.name: column.type_oid for column in relation.columns}
    for name, oids in COLUMNS.items():
        if name not in types:
            return f"the publication leaves out the column {name!r} of {relation.namespace}.{relation.name}"
        if types[name] not in oids:
            return f"the column {name!r} of {relation.namespace}.{relation.name} has another type (oid {types[name]})"
    return None


def row_reader(relation: Relation) -> ReadRow:
    """The reader for rows of this shape. Raises ``DecodeError`` where ``misfit`` has something to say."""
    problem = misfit(relation)
    if problem is not None:
        raise DecodeError(problem)
    places = {column.name: place for place, column in enumerate(relation.columns)}
    ordered: Callable[[Row], tuple[Any, ...]] = itemgetter(*(places[name] for name in COLUMNS))
    width = len(relation.columns)
    fixed: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    clock, new = time_writer(), tuple.__new__

    def decoded(raw: tuple[Any, ...]) -> tuple[Any, ...]:
        """What all messages of a type have in common: decoded once."""
        topic, kind, type_, version, content_type, aggregate_type = raw
        if len(fixed) >= _FIXED_MAX:
            fixed.clear()
        aggregate = None if aggregate_type is None else aggregate_type.decode()
        found = topic.decode(), kind.decode(), type_.decode(), _I32(version)[0], content_type.decode(), aggregate
        fixed[raw] = found
        return found

    def read(row: Row) -> tuple[int, int, Outgoing]:
        if len(row) != width:
            raise DecodeError(f"a row of {len(row)} values where the table has {width} columns")
        (seq, bucket, topic, key, payload, event_id, created_at, kind, type_, version, content_type, aggregate_type,
         aggregate_id, aggregate_version, headers) = ordered(row)  # fmt: skip
        if type(seq) is Text:
            raise DecodeError("the values came in the text format, though the binary one was asked for")
        raw = (topic, kind, type_, version, content_type, aggregate_type)
        topic, kind, type_, version, content_type, aggregate_type = fixed.get(raw) or decoded(raw)
        h = hexlify(event_id)
        columns = (
            topic,
            key,
            payload,
            b"-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:])),
            clock(_I64(created_at)[0]),
            kind,
            type_,
            version,
            content_type,
            aggregate_type,
            None if aggregate_id is None else aggregate_id.decode(),
            None if aggregate_version is None else _I64(aggregate_version)[0],
            None if headers is None else checked(headers[1:].decode()),
        )
        return _I64(seq)[0], _I16(bucket)[0], new(Outgoing, columns)

    return read


def checked(headers: str) -> str:
    """``headers`` as they are; raises ``ValueError`` if they cannot be sent."""
    check_headers_text(headers)
    return headers


def time_writer() -> Callable[[int], bytes]:
    """From microseconds since 2000 to RFC 3339 in UTC. Times come nearly sorted: the second before is remembered."""
    last, prefix = None, b""

    def write(microseconds: int) -> bytes:
        nonlocal last, prefix
        second, rest = divmod(microseconds, _SECOND_US)
        if second != last:
            prefix = (_POSTGRES_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S").encode()
            last = second
        return b"%b.%06d+00:00" % (prefix, rest)

    return write
