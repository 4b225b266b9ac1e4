"""Handlers' transactions on SQLAlchemy 2: ``Session``, ``Connection`` and their asynchronous forms.

The handler gets a fresh session bound to Relevo's connection. While it runs, any commit of that connection raises; a
rollback (which a failed flush does by itself) is remembered, and then the handler cannot succeed.
Savepoints are allowed. Where several handlers share the transaction each has its own session, which does not end it;
what listens to a session's commit is told before its flush, and after the transaction's commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from relevo.errors import MisuseError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.storage.handles.sqlalchemy import ConnectionHandle
from relevo.storage.transactions.base import GUARDED, MISUSE, arefuse, refuse
from relevo.storage.transactions.pipelining import ends_transaction
from relevo.storage.transactions.sessions import begin_on, close, commit, flush, mode, undo
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

    pipelines = False
    """SQLAlchemy reads the result of every statement at once."""

    def unit(self, *, many: bool = False) -> SqlalchemyUnit | AsyncSqlalchemyUnit:
        if self.is_async:
            return AsyncSqlalchemyUnit(self._engine, self._make_session, many)
        return SqlalchemyUnit(self._engine, self._make_session, many)

    async def aclose(self) -> None:
        if self._owned:
            done = self._engine.dispose()
            if self.is_async:
                await done


class _Guard:
    """Watches one connection, and what the handler got on it, while the handler runs."""

    def __init__(self, connection: Connection, many: bool) -> None:
        from sqlalchemy import event

        self._connection = connection
        self._many = many
        self._rolled_back = False
        self._event = event
        event.listen(connection, "commit", refuse)
        event.listen(connection, "rollback", self._on_rollback)
        if many:
            event.listen(connection, "before_cursor_execute", _refuse_ends)
        self._session: object = None

    def watch(self, session: object, replacement: Callable[..., Any]) -> None:
        """A session that was not used yet has nothing to roll back and would say nothing: its methods refuse too."""
        self._session = session
        for name in GUARDED:
            setattr(session, name, replacement)

    def let_go(self) -> None:
        """The handler is done with its session."""
        session, self._session = self._session, None
        for name in GUARDED if session is not None else ():
            vars(session).pop(name, None)

    def lift(self) -> None:
        self.let_go()
        if self._event.contains(self._connection, "commit", refuse):
            self._event.remove(self._connection, "commit", refuse)
            self._event.remove(self._connection, "rollback", self._on_rollback)
            if self._many:
                self._event.remove(self._connection, "before_cursor_execute", _refuse_ends)

    def check(self) -> None:
        """Raise unless the transaction is the one that began, and can be committed."""
        self.let_go()
        if self._rolled_back or self._connection.closed:
            raise MisuseError(MISUSE)
        if still_open(self._connection.connection.driver_connection) is None:
            self._connection.exec_driver_sql("select 1")  # an aborted transaction raises here, and not at the commit

    def _on_rollback(self, _: Connection) -> None:
        self._rolled_back = True


def _refuse_ends(connection: object, cursor: object, statement: str, *_: object) -> None:
    """A COMMIT as SQL would be at the cost of the other messages."""
    if ends_transaction(statement):
        raise MisuseError(MISUSE)


class SqlalchemyUnit:
    misused = False

    def __init__(self, engine: Engine, make_session: MakeSession | None, many: bool = False) -> None:
        self._engine = engine
        self._make_session = make_session
        self._many = many
        self._connection: Connection | None = None
        self._sessions: list[Session] = []
        self._guard: _Guard | None = None

    def begin(self) -> None:
        self._connection = self._engine.connect()
        begin_on(self._connection)

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._connection is not None
        return ConnectionHandle(self._connection).execute(sql, params)

    def enter(self) -> object:
        assert self._connection is not None
        self._guard = self._guard or _Guard(self._connection, self._many)
        if self._make_session is None:
            return self._connection
        session = self._make_session(bind=self._connection, join_transaction_mode=mode(self._many))
        self._sessions.append(session)
        self._guard.watch(session, refuse)
        return session

    def leave(self) -> None:
        assert self._guard is not None
        if self._sessions:
            flush(self._sessions[-1], self._many)
        self._guard.check()

    def pipeline(self) -> None:
        """Not here, see ``pipelines``."""

    def sync(self) -> None: ...

    def commit(self) -> None:
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
            connection.close()

    @property
    def broken(self) -> bool:
        return self._connection is not None and self._connection.invalidated


class AsyncSqlalchemyUnit:
    misused = False

    def __init__(self, engine: AsyncEngine, make_session: MakeSession | None, many: bool = False) -> None:
        self._engine = engine
        self._make_session = make_session
        self._many = many
        self._connection: AsyncConnection | None = None
        self._sessions: list[AsyncSession] = []
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
        self._guard = self._guard or _Guard(self._connection.sync_connection, self._many)
        if self._make_session is None:
            return self._connection
        session = self._make_session(bind=self._connection, join_transaction_mode=mode(self._many))
        self._sessions.append(session)
        self._guard.watch(session, arefuse)
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

    async def commit(self) -> None:
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
            await connection.close()

    @property
    def broken(self) -> bool:
        return self._connection is not None and not self._connection.closed and self._connection.invalidated


def leave(_: Connection, session: Session | None, guard: _Guard, many: bool) -> None:
    if session is not None:
        flush(session, many)
    guard.check()
