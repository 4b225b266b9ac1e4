"""PostgreSQL's logical replication messages (plugin ``pgoutput``, protocol version 1) from bytes. Pure.

Every length is checked against what is there, and a message must end where its bytes do: truncated or foreign input is
a ``DecodeError``, never a wrong row. Version 1 on purpose: the server sends a transaction after its commit, in one
piece, and keeps a large one on its own disk, so nothing that may still be rolled back ever needs room here.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Final

from relevo.sources.wal.protocol import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Decoded,
    DecodeError,
    Delete,
    Insert,
    Logical,
    Origin,
    Relation,
    Row,
    Text,
    Truncate,
    Type,
    Update,
)

_U16 = Struct(">H").unpack_from
_U32 = Struct(">I").unpack_from
_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_U64 = Struct(">Q").unpack_from
_TYPE_INFO = Struct(">Ii")

_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
_NEW, _KEY, _OLD = b"NKO"

NOT_ASKED_FOR: Final = {
    ord(byte): name
    for byte, name in {
        "S": "stream start",
        "E": "stream stop",
        "c": "stream commit",
        "A": "stream abort",
        "b": "begin prepare",
        "P": "prepare",
        "K": "commit prepared",
        "r": "rollback prepared",
        "p": "stream prepare",
    }.items()
}
"""Messages of later protocol versions: the server sends none of them to who asks for version 1."""


def decode(data: bytes) -> Decoded:
    """The message in ``data``, which must hold one and nothing else. Raises ``DecodeError``."""
    if not data:
        raise DecodeError("an empty replication message")
    decoder = _DECODERS.get(data[0])
    if decoder is None:
        raise DecodeError(_unknown(data[0]))
    try:
        message, end = decoder(data, 1)
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"{_name(data[0])} of {len(data)} bytes is cut off or broken: {error}") from None
    if end != len(data):
        raise DecodeError(f"{_name(data[0])} of {len(data)} bytes should have ended at byte {end}")
    return message


def decode_insert(data: bytes, at: int = 0) -> tuple[int, Row]:
    """As ``decode`` for a message at ``at`` that begins with ``I``: the table's oid and the new row. For the hot path,
    like the next two."""
    try:
        row, end = _row(data, _expect(data, at + 5, _NEW))
        oid: int = _U32(data, at + 1)[0]
    except (StructError, IndexError) as error:
        raise DecodeError(f"{_name(data[at])} of {len(data)} bytes is cut off or broken: {error}") from None
    if end != len(data):
        raise DecodeError(f"{_name(data[at])} of {len(data)} bytes should have ended at byte {end}")
    return oid, row


def decode_begin(data: bytes, at: int) -> tuple[int, int, int]:
    """(LSN of the commit record, microseconds, xid) of a message at ``at`` that begins with ``B``."""
    if len(data) != at + 1 + _BEGIN.size:
        raise DecodeError(f"{_name(data[at])} of {len(data) - at} bytes is cut off or too long")
    lsn, committed_us, xid = _BEGIN.unpack_from(data, at + 1)
    return lsn, committed_us, xid


def decode_commit(data: bytes, at: int) -> int:
    """The end of a transaction, of a message at ``at`` that begins with ``C``."""
    if len(data) != at + 1 + _COMMIT.size:
        raise DecodeError(f"{_name(data[at])} of {len(data) - at} bytes is cut off or too long")
    end: int = _COMMIT.unpack_from(data, at + 1)[2]
    return end


def _unknown(byte: int) -> str:
    known = NOT_ASKED_FOR.get(byte)
    if known is not None:
        return f"{_name(byte)} ({known}) belongs to a protocol version that was not asked for"
    return f"{_name(byte)} is not known: this server speaks a newer protocol, or the stream is broken"


def _name(byte: int) -> str:
    return f"replication message 0x{byte:02x}" + (f" {chr(byte)!r}" if 32 < byte < 127 else "")


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise DecodeError(f"{_name(data[0])} of {len(data)} bytes has a name without an end at byte {at}")
    return data[at:end].decode(), end + 1


def _row(data: bytes, at: int) -> tuple[Row, int]:
    size = len(data)
    count = _U16(data, at)[0]
    at += 2
    row: Row = []
    append, length = row.append, _U32
    for _ in range(count):
        kind = data[at]
        if kind == _BINARY:
            start = at + 5
            at = start + length(data, at + 1)[0]
            if at > size:
                raise DecodeError(f"{_name(data[0])} of {size} bytes has a value that ends at byte {at}")
            append(data[start:at])
        elif kind == _NULL:
            append(None)
            at += 1
        elif kind == _TEXT:
            start = at + 5
            at = start + length(data, at + 1)[0]
            if at > size:
                raise DecodeError(f"{_name(data[0])} of {size} bytes has a value that ends at byte {at}")
            append(Text(data[start:at]))
        elif kind == _UNCHANGED:
            append(UNCHANGED)
            at += 1
        else:
            raise DecodeError(f"{_name(data[0])} has a value of the unknown kind 0x{kind:02x} at byte {at}")
    return row, at


def _expect(data: bytes, at: int, wanted: int) -> int:
    if data[at] != wanted:
        raise DecodeError(f"{_name(data[0])} has 0x{data[at]:02x} at byte {at} where {chr(wanted)!r} belongs")
    return at + 1


def _begin(data: bytes, at: int) -> tuple[Begin, int]:
    return Begin(*_BEGIN.unpack_from(data, at)), at + _BEGIN.size


def _commit(data: bytes, at: int) -> tuple[Commit, int]:
    return Commit(*_COMMIT.unpack_from(data, at)), at + _COMMIT.size


def _origin(data: bytes, at: int) -> tuple[Origin, int]:
    lsn = _U64(data, at)[0]
    name, at = _string(data, at + 8)
    return Origin(lsn, name), at


def _relation(data: bytes, at: int) -> tuple[Relation, int]:
    oid = _U32(data, at)[0]
    namespace, at = _string(data, at + 4)
    name, at = _string(data, at)
    identity, count = data[at], _U16(data, at + 1)[0]
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _string(data, at + 1)
        columns.append(Column(flags, column, *_TYPE_INFO.unpack_from(data, at)))
        at += _TYPE_INFO.size
    return Relation(oid, namespace, name, identity, tuple(columns)), at


def _type(data: bytes, at: int) -> tuple[Type, int]:
    oid = _U32(data, at)[0]
    namespace, at = _string(data, at + 4)
    name, at = _string(data, at)
    return Type(oid, namespace, name), at


def _insert(data: bytes, at: int) -> tuple[Insert, int]:
    row, end = _row(data, _expect(data, at + 4, _NEW))
    return Insert(_U32(data, at)[0], row), end


def _update(data: bytes, at: int) -> tuple[Update, int]:
    relation = _U32(data, at)[0]
    kind = data[at + 4]
    at += 4
    old: Row | None = None
    if kind in (_KEY, _OLD):
        old, at = _row(data, at + 1)
    new, at = _row(data, _expect(data, at, _NEW))
    return Update(relation, new, old, kind == _KEY), at


def _delete(data: bytes, at: int) -> tuple[Delete, int]:
    relation = _U32(data, at)[0]
    kind = data[at + 4]
    if kind != _KEY:
        _expect(data, at + 4, _OLD)
    old, end = _row(data, at + 5)
    return Delete(relation, old, kind == _KEY), end


def _truncate(data: bytes, at: int) -> tuple[Truncate, int]:
    count, options = _U32(data, at)[0], data[at + 4]
    at += 5
    end = at + 4 * count
    if end > len(data):
        raise DecodeError(f"{_name(data[0])} of {len(data)} bytes names {count} tables")
    return Truncate(tuple(_U32(data, place)[0] for place in range(at, end, 4)), options), end


def _logical(data: bytes, at: int) -> tuple[Logical, int]:
    flags, lsn = data[at], _U64(data, at + 1)[0]
    if flags > 1:
        raise DecodeError(f"{_name(data[0])} has unknown flags 0x{flags:02x}")
    prefix, at = _string(data, at + 9)
    end = at + 4 + _U32(data, at)[0]
    if end > len(data):
        raise DecodeError(f"{_name(data[0])} of {len(data)} bytes has content that ends at byte {end}")
    return Logical(flags == 1, lsn, prefix, data[at + 4 : end]), end


_DECODERS: Final[dict[int, Callable[[bytes, int], tuple[Decoded, int]]]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _logical,
}
