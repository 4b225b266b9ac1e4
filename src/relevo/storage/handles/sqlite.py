"""SQLite: ``sqlite3.Connection`` and ``aiosqlite.Connection``."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relevo.clients.sqlite import read_leniently
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.storage.handles.adapt import adapt
from relevo.storage.handles.base import CallerHandle

if TYPE_CHECKING:
    import aiosqlite


class SqliteHandle(CallerHandle):
    """Rows come as tuples and text as ``str``, regardless of the caller's factories."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return "sqlite"

    def commits_by_itself(self) -> bool:
        return never_begins(self._connection) and not self._connection.in_transaction

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        connection = self._connection
        cursor, texts = connection.cursor(sqlite3.Cursor), connection.text_factory
        try:
            cursor.row_factory = None
            if texts is not str:
                connection.text_factory = str
            values = adapt("sqlite", params)
            try:
                return cursor.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                if not read_leniently(connection, error, sql):
                    raise
                return cursor.execute(sql, values).fetchall()
        finally:
            connection.text_factory = texts
            cursor.close()


class AiosqliteHandle(CallerHandle):
    """As ``SqliteHandle``, on aiosqlite's thread. No hook on commit."""

    __slots__ = ("_connection",)
    is_async = True

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return "sqlite"

    def commits_by_itself(self) -> bool:
        inner: sqlite3.Connection = self._connection._conn
        return never_begins(inner) and not inner.in_transaction

    async def aexecute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        connection, texts = self._connection, self._connection.text_factory
        try:
            connection.text_factory = str
            async with connection.cursor() as cursor:
                cursor.row_factory = None
                await cursor.execute(sql, adapt("sqlite", params))
                return [tuple(row) for row in await cursor.fetchall()]
        finally:
            connection.text_factory = texts


def never_begins(connection: sqlite3.Connection) -> bool:
    """Whether the driver leaves BEGIN to the caller: ``isolation_level=None``, or ``autocommit=True`` (Python 3.12)."""
    autocommit = getattr(connection, "autocommit", None)
    if isinstance(autocommit, bool):
        return autocommit
    return connection.isolation_level is None
