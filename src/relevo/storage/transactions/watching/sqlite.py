"""SQLite asks its authorizer before it prepares a statement."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from relevo.storage.transactions.watching.watch import Watch

_LOOKS: Final = frozenset(
    (
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"),
        *("foreign_key_check", "integrity_check", "quick_check", "optimize", "wal_checkpoint", "incremental_vacuum"),
    )
)
"""Pragmas whose argument sets nothing."""
_LASTS: Final = frozenset(
    (
        *(sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_CREATE_TEMP_TABLE),
        *(sqlite3.SQLITE_CREATE_TEMP_INDEX, sqlite3.SQLITE_CREATE_TEMP_TRIGGER, sqlite3.SQLITE_CREATE_TEMP_VIEW),
    )
)
"""What stays on the connection, and would be in the way of the next message's handler."""


class SqliteWatch:
    """On ``sqlite3.Connection``: its authorizer refuses ``BEGIN`` and ``COMMIT``, as methods and as SQL alike, and
    ``ROLLBACK`` unless it may pass, and sees a ``PRAGMA`` that sets something. It replaces the application's. ``ours``:
    Relevo opened the connection, so that it has no callbacks but a handler's."""

    def __init__(self, connection: sqlite3.Connection, watch: Watch, *, ours: bool = False) -> None:
        self.watch = watch
        self._connection = connection
        self._ours = ours
        self._factories = connection.row_factory, connection.text_factory
        self._is_on = False

    def put_on(self) -> None:
        self._connection.set_authorizer(self.authorize)
        self._is_on = True

    def holds(self) -> bool:
        """Whether the authorizer is still this one. A handler that removed it may have ended the transaction and begun
        another; nothing else shows that."""
        ended = self.watch.ended
        try:
            self._connection.execute("begin")
        except sqlite3.DatabaseError as error:  # operational: there is a transaction, and nothing refused another
            ended = ended or isinstance(error, sqlite3.ProgrammingError)  # closed
            return not isinstance(error, sqlite3.OperationalError)
        finally:
            self.watch.ended = ended
        self._connection.execute("rollback")
        return False

    def take_back(self, *, last: bool = False) -> None:
        """What the handler set on the connection object; ``last``: the authorizer too."""
        connection = self._connection
        connection.row_factory, connection.text_factory = self._factories
        try:
            if self._ours:
                connection.set_progress_handler(None, 0)
                connection.set_trace_callback(None)
            if last:
                connection.set_authorizer(None)
        except sqlite3.ProgrammingError:  # closed
            self.watch.ended = True

    def lift(self) -> None:
        if self._is_on:
            self._is_on = False
            self.take_back(last=True)

    def authorize(self, action: int, operation: str | None, value: str | None, *_: object) -> int:
        if action != sqlite3.SQLITE_TRANSACTION:
            sets = action == sqlite3.SQLITE_PRAGMA and value is not None and operation not in _LOOKS
            if sets or action in _LASTS:
                self.watch.lasts = True
                self.watch.sets = self.watch.many
            return sqlite3.SQLITE_OK
        if self.watch.may_roll_back and operation == "ROLLBACK":
            self.watch.rolled_back = True
            return sqlite3.SQLITE_OK
        self.watch.ended = True
        return sqlite3.SQLITE_DENY


class AiosqliteWatch:
    """On aiosqlite's connection, below SQLAlchemy's asynchronous ones. The authorizer stays until the next one, and
    lets all pass once it is lifted: only the connection's own thread can put it on."""

    def __init__(self, connection: Any, watch: Watch) -> None:
        self.watch = watch
        self._connection = connection
        self._judge = SqliteWatch(connection._conn, watch)
        self._is_on = False

    def put_on(self) -> None:
        """Within SQLAlchemy's ``run_sync``."""
        from sqlalchemy.util import await_only

        self._is_on = True
        await_only(self._connection._execute(self._connection._conn.set_authorizer, self._authorize))

    def holds(self) -> bool:
        return True

    def lift(self) -> None:
        self._is_on = False

    def _authorize(self, action: int, *about: Any) -> int:
        return self._judge.authorize(action, *about) if self._is_on else sqlite3.SQLITE_OK
