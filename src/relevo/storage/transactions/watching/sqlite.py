"""SQLite asks its authorizer before it prepares a statement."""

from __future__ import annotations

import sqlite3
from typing import Final

from relevo.storage.transactions.watching.watch import Watch

_LOOKS: Final = frozenset(
    (
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"),
        *("foreign_key_check", "integrity_check", "quick_check", "optimize", "wal_checkpoint", "incremental_vacuum"),
    )
)
"""Pragmas whose argument sets nothing."""


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
        self._connection.set_authorizer(self._authorize)
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

    def _authorize(self, action: int, operation: str | None, value: str | None, *_: object) -> int:
        if action != sqlite3.SQLITE_TRANSACTION:
            if action == sqlite3.SQLITE_PRAGMA and value is not None and operation not in _LOOKS:
                self.watch.lasts = True
                self.watch.sets = self.watch.many
            return sqlite3.SQLITE_OK
        if self.watch.may_roll_back and operation == "ROLLBACK":
            self.watch.rolled_back = True
            return sqlite3.SQLITE_OK
        self.watch.ended = True
        return sqlite3.SQLITE_DENY
