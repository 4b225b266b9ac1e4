"""psycopg's cursors for Relevo's own statements on a connection of the application's.

The application may have taught psycopg, globally or on the connection, other ways to write and read types (dumpers,
loaders, ``set_json_loads``). Relevo's cursors have adapters of their own, as psycopg ships them, but for these:

- Arrays go in binary. As text they depend on the session: on ``array_nulls``, and bytes in them on
  ``standard_conforming_strings``.
- Bytes in a COPY are written in hexadecimal, which every session reads alike.
- JSON stays text.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def adapters() -> Any:
    """An ``AdaptersMap`` that nothing outside changes."""
    from psycopg.adapt import AdaptersMap, Dumper
    from psycopg.postgres import register_default_adapters, register_default_types
    from psycopg.pq import Format
    from psycopg.types import TypesRegistry
    from psycopg.types.array import ListBinaryDumper
    from psycopg.types.string import BytesBinaryDumper, TextLoader

    class HexDumper(Dumper):
        format = Format.TEXT
        oid = 17  # bytea

        def dump(self, obj: Any) -> bytes:
            return b"\\x" + bytes(obj).hex().encode()

    types = TypesRegistry()
    register_default_types(types)
    ours = AdaptersMap(types=types)
    register_default_adapters(ours)
    ours.register_dumper(list, ListBinaryDumper)
    ours.register_dumper(bytes, HexDumper)
    ours.register_dumper(bytes, BytesBinaryDumper)  # the last one is taken where either would do
    for name in ("json", "jsonb"):
        ours.register_loader(name, TextLoader)
    return ours


@cache
def cursors() -> tuple[Any, Any, Any, Any]:
    """Looked up once, since an append is on the caller's time: a raw cursor, a client-side one and a plain one for
    COPY, each with ``adapters``, and the row factory for tuples."""
    from psycopg import ClientCursor, Cursor, RawCursor
    from psycopg.rows import tuple_row

    return _ours(RawCursor), _ours(ClientCursor), _ours(Cursor), tuple_row


@cache
def async_cursors() -> tuple[Any, Any, Any, Any]:
    """``cursors`` for an ``AsyncConnection``."""
    from psycopg import AsyncClientCursor, AsyncCursor, AsyncRawCursor
    from psycopg.rows import tuple_row

    return _ours(AsyncRawCursor), _ours(AsyncClientCursor), _ours(AsyncCursor), tuple_row


def _ours(base: Any) -> Any:
    class Ours(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._adapters = adapters()

    Ours.__name__ = base.__name__
    return Ours


class Array(list[Any]):
    """A list for SQLAlchemy's cursors on psycopg, written as binary, even if the application chose otherwise."""


def teach(connection: Any) -> None:
    """Let cursors of ``connection`` write ``Array``. It is a class of Relevo's own, so nothing else changes."""
    from psycopg.adapt import PyFormat

    known = connection.adapters._dumpers[PyFormat.BINARY]
    if Array not in known:
        connection.adapters.register_dumper(Array, _array_dumper())


@cache
def _array_dumper() -> Any:
    from psycopg.types.array import ListBinaryDumper

    class ArrayDumper(ListBinaryDumper):
        """The elements are Relevo's own: text, numbers and bytes."""

    return ArrayDumper
