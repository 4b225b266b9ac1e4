"""Handlers' transactions on SQLAlchemy 2: ``Session``, ``Connection`` and their asynchronous forms.

The handler gets a fresh session whose work goes over Relevo's connection (``pinning``). While it runs, any commit of
that connection raises, on the driver's connection below it too (``watching``); a rollback (which a failed flush does by
itself) is remembered, and then the handler cannot succeed. Savepoints are allowed. Where several handlers share the
transaction each has its own session, which does not end it; what listens to a session's commit is told before its
flush, and after the transaction's commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from relevo.errors import MisuseError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.storage.handles.sqlalchemy import ConnectionHandle
from relevo.storage.transactions.base import MISUSE
from relevo.storage.transactions.guarding import Guard, leave
from relevo.storage.transactions.sessions import begin_on, close, commit, opened, prove_on, undo
from relevo.storage.transactions.severing import OnEngine, disposed

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

    pipelines = False
    """SQLAlchemy reads the result of every statement at once."""

    def unit(self, *, many: bool = False) -> SqlalchemyUnit | AsyncSqlalchemyUnit:
        if self.is_async:
            return AsyncSqlalchemyUnit(self._engine, self._make_session, many, self._owned)
        return SqlalchemyUnit(self._engine, self._make_session, many, self._owned)

    def forget_idle(self) -> None:
        if self._owned:
            getattr(self._engine, "sync_engine", self._engine).dispose(close=False)

    async def aclose(self) -> None:
        if self._owned:
            await disposed(self._engine)


class SqlalchemyUnit(OnEngine):
    def __init__(
        self, engine: Engine, make_session: MakeSession | None, many: bool = False, owned: bool = False
    ) -> None:
        self._engine = engine
        self._make_session = make_session
        self._many = many
        self._owned = owned
        self._connection: Connection | None = None
        self._driver: Any = None
        self._sessions: list[Session] = []
        self._guard: Guard | None = None

    def begin(self) -> None:
        self._connection = self._engine.connect()
        self._driver = self._connection.connection.driver_connection
        begin_on(self._connection)

    def prove(self) -> None:
        if self._make_session is not None:
            assert self._connection is not None
            prove_on(self._make_session, self._connection, self._connection)

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._connection is not None
        return ConnectionHandle(self._connection).execute(sql, params)

    def enter(self) -> object:
        assert self._connection is not None
        self._guard = self._guard or Guard(self._connection, self._many)
        if self._make_session is None:
            return self._connection
        session = opened(self._make_session, self._connection, self._connection, self._many)
        self._sessions.append(session)
        self._guard.watch(session)
        return session

    def leave(self) -> None:
        assert self._connection is not None
        assert self._guard is not None
        leave(self._connection, self._sessions[-1] if self._sessions else None, self._guard, self._many)

    def pipeline(self) -> None:
        """Not here, see ``pipelines``."""

    def sync(self) -> None: ...

    def commit(self, xid: str | None = None) -> None:
        assert self._connection is not None
        if self._guard is not None:
            self._guard.lift()
        commit(self._connection, self._sessions, self._many)

    def rollback(self) -> None:
        if self._guard is not None:
            self._guard.lift()
        if self._connection is not None:
            undo(self._connection, self._sessions, self._many)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        for session in self._sessions:
            session.close()
        if connection is not None:
            if self._ends_with(connection):
                connection.invalidate()
            connection.close()

    @property
    def broken(self) -> bool:
        return self._connection is not None and self._connection.invalidated

    @property
    def bypassed(self) -> bool:
        return self._guard is not None and self._guard.bypassed

    @property
    def misused(self) -> bool:
        return self._guard is not None and self._guard.misused


class AsyncSqlalchemyUnit(OnEngine):
    def __init__(
        self, engine: AsyncEngine, make_session: MakeSession | None, many: bool = False, owned: bool = False
    ) -> None:
        self._engine = engine
        self._make_session = make_session
        self._many = many
        self._owned = owned
        self._connection: AsyncConnection | None = None
        self._driver: Any = None
        self._sessions: list[AsyncSession] = []
        self._guard: Guard | None = None

    async def begin(self) -> None:
        self._connection = await self._engine.connect()
        self._driver = (await self._connection.get_raw_connection()).driver_connection
        await self._connection.run_sync(begin_on)

    async def prove(self) -> None:
        if self._make_session is not None:
            assert self._connection is not None
            assert self._connection.sync_connection is not None
            prove_on(self._make_session, self._connection, self._connection.sync_connection)

    async def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._connection is not None
        return await self._connection.run_sync(lambda connection: ConnectionHandle(connection).execute(sql, params))

    async def enter(self) -> object:
        assert self._connection is not None
        assert self._connection.sync_connection is not None
        if self._guard is None:
            self._guard = await self._connection.run_sync(Guard, self._many)
        if self._make_session is None:
            return self._connection
        session = opened(self._make_session, self._connection, self._connection.sync_connection, self._many)
        self._sessions.append(session)
        self._guard.watch(session)
        return session

    async def leave(self) -> None:
        assert self._connection is not None
        assert self._guard is not None
        if self._connection.closed:
            raise MisuseError(MISUSE)
        session = self._sessions[-1].sync_session if self._sessions else None
        await self._connection.run_sync(leave, session, self._guard, self._many)

    async def pipeline(self) -> None:
        """Not here, see ``pipelines``."""

    async def sync(self) -> None: ...

    async def commit(self, xid: str | None = None) -> None:
        assert self._connection is not None
        if self._guard is not None:
            self._guard.lift()
        sessions = [session.sync_session for session in self._sessions]
        await self._connection.run_sync(commit, sessions, self._many)

    async def rollback(self) -> None:
        if self._guard is not None:
            self._guard.lift()
        if self._connection is not None and not self._connection.closed:
            sessions = [session.sync_session for session in self._sessions]
            await self._connection.run_sync(undo, sessions, self._many)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if self._sessions:
            await self._sessions[0].run_sync(close, [session.sync_session for session in self._sessions])
        if connection is not None:
            if not connection.closed and self._ends_with(connection):
                await connection.invalidate()
            await connection.close()

    @property
    def broken(self) -> bool:
        return self._connection is not None and not self._connection.closed and self._connection.invalidated

    bypassed = False

    @property
    def misused(self) -> bool:
        return self._guard is not None and self._guard.misused
