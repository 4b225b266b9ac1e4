"""Handlers' transactions on the standard library's ``sqlite3``.

From the first handler on, an authorizer refuses every BEGIN, COMMIT and ROLLBACK, from methods and as SQL alike;
savepoints are allowed. The authorizer of a connection that came from the application's own factory is replaced. That a
handler removed it is noticed when the handler returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from relevo.errors import ConfigError, MisuseError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.storage.handles import CallerHandle, handle_for
from relevo.storage.handles.sqlite import SqliteHandle
from relevo.storage.transactions.base import NO_WRITE_UNDER_WAY, OPEN, InThread, unread, wrong_kind
from relevo.storage.transactions.lending import Lender
from relevo.storage.transactions.status import still_open
from relevo.storage.transactions.watching import SqliteWatch, Watch


class SqliteTransactions:
    """``Transactions`` from a lender of sqlite3 connections, which may be used by any thread, one at a time."""

    dialect: Dialect = "sqlite"
    pipelines = False

    def __init__(self, lender: Lender, *, is_async: bool) -> None:
        self._lender = lender
        self.is_async = is_async

    def unit(self, *, many: bool = False) -> SqliteUnit | InThread:
        unit = SqliteUnit(self._lender, many=many)
        return InThread(unit) if self.is_async else unit

    def forget_idle(self) -> None: ...

    async def aclose(self) -> None:
        self._lender.close()


class SqliteUnit:
    def __init__(self, lender: Lender, *, many: bool = False) -> None:
        self._lender = lender
        self._connection: sqlite3.Connection | None = None
        self._handle: CallerHandle | None = None
        self._watch = Watch(many=many)
        self._on: SqliteWatch | None = None
        self._bypassed = False
        self._distrusted = False

    def begin(self) -> None:
        connection = self._lender.acquire()
        try:
            handle = handle_for(connection)
        except MisuseError as error:
            raise wrong_kind(connection, "a sqlite3.Connection") from error
        if not isinstance(handle, SqliteHandle):
            raise wrong_kind(connection, "a sqlite3.Connection")
        self._connection, self._handle = connection, handle
        if connection.in_transaction:
            raise ConfigError(OPEN)
        connection.execute("begin immediate")

    def prove(self) -> None:
        """The handler gets the very connection."""

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._handle is not None
        return self._handle.execute(sql, params)

    def enter(self) -> object:
        assert self._connection is not None
        if self._on is None:
            self._on = SqliteWatch(self._connection, self._watch, ours=self._lender.keeps)
            self._on.put_on()
        return self._connection

    def leave(self) -> None:
        if self.misused:
            self._watch.ended = True
        if self._on is not None:
            self._on.take_back()
        self._watch.check()
        still_open(self._connection)
        assert self._connection is not None
        for text in NO_WRITE_UNDER_WAY:
            try:
                self._connection.execute(text)
            except sqlite3.OperationalError as error:
                self._watch.check()
                raise unread(error) from error

    def _lift(self) -> None:
        on, self._on = self._on, None
        if on is not None:
            on.lift()

    @property
    def misused(self) -> bool:
        return self._watch.ended or self.bypassed

    @property
    def bypassed(self) -> bool:
        """A handler removed what watches it, so that it may have committed what it did and the inbox rows."""
        self._bypassed = self._bypassed or (self._on is not None and not self._on.holds())
        return self._bypassed

    def pipeline(self) -> None:
        """A library call has no round trip to save."""

    def sync(self) -> None: ...

    def commit(self, xid: str | None = None) -> None:
        assert self._connection is not None
        self._lift()
        self._connection.execute("commit")

    def rollback(self) -> None:
        if self._connection is not None:
            try:
                self._lift()
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
            except sqlite3.Error:
                self._connection.close()

    def close(self) -> None:
        self._lift()
        connection, self._connection, self._handle = self._connection, None, None
        if connection is not None:
            self._lender.release(connection, self._distrusted or self._watch.lasts or _closed(connection))

    def distrust(self) -> None:
        self._distrusted = True

    def sever(self) -> bool:
        return False  # a file answers, or its lock's time-out ends

    def waits_for_pool(self) -> bool:
        return False

    def waits(self, quiet_s: float) -> bool:
        return False

    @property
    def broken(self) -> bool:
        return False  # a file has no connection to lose: its outages have codes of their own


def _closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018 - the cheapest thing that raises on a closed connection
    except sqlite3.ProgrammingError:
        return True
    return False
