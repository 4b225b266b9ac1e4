"""The other direction: replication messages as a server writes them, for property tests of the decoder."""

from __future__ import annotations

from struct import pack

from hypothesis import strategies as st

from relevo.sources.wal.protocol import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Decoded,
    Delete,
    Insert,
    Logical,
    Origin,
    Relation,
    Row,
    Text,
    Truncate,
    Type,
    Unchanged,
    Update,
)


def encode(message: Decoded) -> bytes:
    """The bytes of one message of protocol version 1."""
    match message:
        case Begin(lsn, at, xid):
            return b"B" + pack(">QqI", lsn, at, xid)
        case Commit(flags, lsn, end, at):
            return b"C" + pack(">BQQq", flags, lsn, end, at)
        case Origin(lsn, name):
            return b"O" + pack(">Q", lsn) + _text(name)
        case Relation(oid, namespace, name, identity, columns):
            head = b"R" + pack(">I", oid) + _text(namespace) + _text(name) + pack(">BH", identity, len(columns))
            return head + b"".join(
                pack(">B", column.flags) + _text(column.name) + pack(">Ii", column.type_oid, column.type_modifier)
                for column in columns
            )
        case Type(oid, namespace, name):
            return b"Y" + pack(">I", oid) + _text(namespace) + _text(name)
        case Insert(oid, new):
            return b"I" + pack(">I", oid) + b"N" + _row(new)
        case Update(oid, new, old, is_key):
            before = b"" if old is None else (b"K" if is_key else b"O") + _row(old)
            return b"U" + pack(">I", oid) + before + b"N" + _row(new)
        case Delete(oid, old, is_key):
            return b"D" + pack(">I", oid) + (b"K" if is_key else b"O") + _row(old)
        case Truncate(oids, options):
            return b"T" + pack(">IB", len(oids), options) + b"".join(pack(">I", oid) for oid in oids)
        case Logical(transactional, lsn, prefix, content):
            head = b"M" + pack(">BQ", int(transactional), lsn) + _text(prefix)
            return head + pack(">I", len(content)) + content


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _row(row: Row) -> bytes:
    parts = [pack(">H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unchanged):
            parts.append(b"u")
        else:
            parts.append((b"t" if isinstance(value, Text) else b"b") + pack(">I", len(value)) + value)
    return b"".join(parts)


_u8, _u32, _u64 = st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_i32, _i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
_rows = st.lists(
    st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=20), st.binary(max_size=20).map(Text)), max_size=8
)
messages: st.SearchStrategy[Decoded] = st.one_of(
    st.builds(Begin, _u64, _i64, _u32),
    st.builds(Commit, _u8, _u64, _u64, _i64),
    st.builds(Origin, _u64, _names),
    st.builds(Relation, _u32, _names, _names, _u8, st.lists(st.builds(Column, _u8, _names, _u32, _i32)).map(tuple)),
    st.builds(Type, _u32, _names, _names),
    st.builds(Insert, _u32, _rows),
    st.builds(Update, _u32, _rows),
    st.builds(Update, _u32, _rows, _rows, st.booleans()),
    st.builds(Delete, _u32, _rows, st.booleans()),
    st.builds(Truncate, st.lists(_u32, max_size=6).map(tuple), _u8),
    st.builds(Logical, st.booleans(), _u64, _names, st.binary(max_size=40)),
)
