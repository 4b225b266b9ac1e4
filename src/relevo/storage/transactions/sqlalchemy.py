"""Handlers' transactions on SQLAlchemy 2: ``Session``, ``Connection`` and their asynchronous forms.

The handler gets a fresh session bound to Relevo's connection. While it runs, any commit of that connection raises; a
rollback (which a failed flush does by itself) is remembered, and then the handler cannot succeed.
Savepoints are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from relevo.errors import MisuseError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.storage.handles import hooks
from relevo.storage.handles.sqlalchemy import ConnectionHandle
from relevo.storage.transactions.base import GUARDED, MISUSE, arefuse, refuse
from relevo.storage.transactions.status import still_open

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

MakeSession = Callable[..., Any]
"""``Session``, ``AsyncSession``, a ``sessionmaker`` or an ``async_sessionmaker``."""


class SqlalchemyTransactions:
    """``Transactions`` from an ``Engine`` or ``AsyncEngine``. ``make_session``: ``None`` hands over the connection."""

    def __init__(
        self, engine: Engine | AsyncEngine, make_session: MakeSession | None, *, is_async: bool, owned: bool
    ) -> None:
        self._engine: Any = engine
        self._make_session = make_session
        self._owned = owned
        self.is_async = is_async

    @property
    def dialect(self) -> Dialect:
        return "sqlite" if self._engine.dialect.name == "sqlite" else "postgresql"

    def unit(self) -> SqlalchemyUnit | AsyncSqlalchemyUnit:
        if self.is_async:
            return AsyncSqlalchemyUnit(self._engine, self._make_session)
        return SqlalchemyUnit(self._engine, self._make_session)

    async def aclose(self) -> None:
        if self._owned:
            done = self._engine.dispose()
            if self.is_async:
                await done


class _Guard:
    """Watches one connection, and what the handler got on it, while the handler runs."""

    def __init__(self, connection: Connection) -> None:
        from sqlalchemy import event

        self._connection = connection
        self._rolled_back = False
        self._event = event
        event.listen(connection, "commit", refuse)
        event.listen(connection, "rollback", self._on_rollback)
        self._session: object = None

    def watch(self, session: object, replacement: Callable[..., Any]) -> None:
        """A session that was not used yet has nothing to roll back and would say nothing: its methods refuse too."""
        self._session = session
        for name in GUARDED:
            setattr(session, name, replacement)

    def lift(self) -> None:
        for name in GUARDED if self._session is not None else ():
            vars(self._session).pop(name, None)
        if self._event.contains(self._connection, "commit", refuse):
            self._event.remove(self._connection, "commit", refuse)
            self._event.remove(self._connection, "rollback", self._on_rollback)

    def check(self) -> None:
        """Raise unless the transaction is the one that began, and can be committed."""
        self.lift()
        if self._rolled_back or self._connection.closed:
            raise MisuseError(MISUSE)
        if still_open(self._connection.connection.driver_connection) is None:
            self._connection.exec_driver_sql("select 1")  # an aborted transaction raises here, and not at the commit

    def _on_rollback(self, _: Connection) -> None:
        self._rolled_back = True


class SqlalchemyUnit:
    misused = False

    def __init__(self, engine: Engine, make_session: MakeSession | None) -> None:
        self._engine = engine
        self._make_session = make_session
        self._connection: Connection | None = None
        self._session: Session | None = None
        self._guard: _Guard | None = None

    def begin(self) -> None:
        self._connection = self._engine.connect()
        begin_on(self._connection)

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._connection is not None
        return ConnectionHandle(self._connection).execute(sql, params)

    def enter(self) -> object:
        assert self._connection is not None
        self._guard = _Guard(self._connection)
        if self._make_session is None:
            return self._connection
        self._session = self._make_session(bind=self._connection, join_transaction_mode="control_fully")
        self._guard.watch(self._session, refuse)
        return self._session

    def leave(self) -> None:
        assert self._guard is not None
        if self._session is not None:
            flush(self._session)
        self._guard.check()

    def commit(self) -> None:
        target = self._session or self._connection
        assert target is not None
        target.commit()

    def rollback(self) -> None:
        if self._guard is not None:
            self._guard.lift()
        if self._connection is not None:
            undo(self._connection, self._session)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if self._session is not None:
            self._session.close()
        if connection is not None:
            connection.close()

    @property
    def broken(self) -> bool:
        return self._connection is not None and self._connection.invalidated


class AsyncSqlalchemyUnit:
    misused = False

    def __init__(self, engine: AsyncEngine, make_session: MakeSession | None) -> None:
        self._engine = engine
        self._make_session = make_session
        self._connection: AsyncConnection | None = None
        self._session: AsyncSession | None = None
        self._guard: _Guard | None = None

    async def begin(self) -> None:
        self._connection = await self._engine.connect()
        await self._connection.run_sync(begin_on)

    async def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._connection is not None
        return await self._connection.run_sync(lambda connection: ConnectionHandle(connection).execute(sql, params))

    async def enter(self) -> object:
        assert self._connection is not None
        assert self._connection.sync_connection is not None
        self._guard = _Guard(self._connection.sync_connection)
        if self._make_session is None:
            return self._connection
        self._session = self._make_session(bind=self._connection, join_transaction_mode="control_fully")
        self._guard.watch(self._session, arefuse)
        return self._session

    async def leave(self) -> None:
        assert self._connection is not None
        assert self._guard is not None
        if self._session is not None:
            await self._session.run_sync(flush)
        if self._connection.closed:
            raise MisuseError(MISUSE)
        guard = self._guard
        await self._connection.run_sync(lambda _: guard.check())

    async def commit(self) -> None:
        target = self._session or self._connection
        assert target is not None
        await target.commit()

    async def rollback(self) -> None:
        if self._guard is not None:
            self._guard.lift()
        if self._connection is not None and not self._connection.closed:
            session = None if self._session is None else self._session.sync_session
            await self._connection.run_sync(lambda connection: undo(connection, session))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if self._session is not None:
            await self._session.close()
        if connection is not None:
            await connection.close()

    @property
    def broken(self) -> bool:
        return self._connection is not None and not self._connection.closed and self._connection.invalidated


def begin_on(connection: Connection) -> None:
    """Begin; on SQLite with the write lock taken at once, whatever the engine's events do, so that no statement fails
    half way because somebody else wrote meanwhile."""
    connection.begin()
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("begin immediate")


def flush(session: Session) -> None:
    """Send what is pending; an ``outbox.add`` that was never awaited raises here, as it would at a commit."""
    hooks.of_session(session).refuse()
    session.flush()


def undo(connection: Connection, session: Session | None) -> None:
    """Roll back; a connection on which that fails is thrown away, and the server rolls back."""
    try:
        if session is not None:
            session.rollback()
        connection.rollback()
    except Exception:  # noqa: BLE001 - see above
        connection.invalidate()
