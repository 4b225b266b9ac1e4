"""What a server says in a logical replication stream, as values. ``pgoutput`` makes them of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias


class DecodeError(ValueError):
    """These bytes are no message of the protocol that was asked for."""


class Text(bytes):
    """A column value in the text format, UTF-8. Values in the type's binary format are plain ``bytes``."""

    __slots__ = ()


class Unchanged:
    """A large value that an update did not touch, and that is not in the stream."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()

Value: TypeAlias = bytes | Unchanged | None
Row: TypeAlias = list[Value]


@dataclass(frozen=True, slots=True)
class Begin:
    """``final_lsn``: of the transaction's commit record. ``committed_us``: microseconds since 2000-01-01 UTC."""

    final_lsn: int
    committed_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """``end_lsn``: where the next record begins; confirming it lets the slot pass this transaction."""

    flags: int
    commit_lsn: int
    end_lsn: int
    committed_us: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was replayed here from another server."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class Column:
    flags: int
    name: str
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True)
class Relation:
    """The shape of a table: before its first row on a connection, and again after every change of it."""

    oid: int
    namespace: str
    name: str
    replica_identity: int
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in."""

    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    relation: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """``old``: the old row or its key, where the table's replica identity gives one (``old_is_key``)."""

    relation: int
    new: Row
    old: Row | None = None
    old_is_key: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    relation: int
    old: Row
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]
    options: int


@dataclass(frozen=True, slots=True)
class Logical:
    """What ``pg_logical_emit_message`` wrote. Not ``transactional``: it comes at once, whatever becomes of its
    transaction."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Decoded: TypeAlias = Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | Logical
