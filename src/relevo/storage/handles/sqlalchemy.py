"""SQLAlchemy 2: sessions and connections, sync and async. The async kinds run the sync ones inside ``run_sync``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from relevo.errors import ConfigError, MisuseError, NotInTransactionError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.storage.handles import hooks
from relevo.storage.handles.adapt import adapt
from relevo.storage.handles.base import CallerHandle, Site

if TYPE_CHECKING:
    from sqlalchemy import Connection, TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

_DIALECTS: Mapping[str, Dialect] = {"postgresql": "postgresql", "sqlite": "sqlite"}


@cache
def _text(sql: str) -> TextClause:
    from sqlalchemy import text

    return text(sql)


class ConnectionHandle(CallerHandle):
    """``sqlalchemy.Connection``."""

    __slots__ = ("_given",)

    def __init__(self, given: Connection) -> None:
        self._given = given

    def connection(self) -> Connection:
        return self._given

    @property
    def dialect(self) -> Dialect:
        return _dialect(self.connection().dialect.name)

    def commits_by_itself(self) -> bool:
        connection = self.connection()
        if not driver_commits(connection):
            return False
        # Applications may emit BEGIN themselves, in SQLAlchemy's "begin" event; a first statement lets them.
        connection.execute(_text("select 1"))
        return driver_commits(connection)

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        connection = self.connection()
        result = connection.execute(_text(sql), _adapted(connection, adapt(self.dialect, params)))
        return [tuple(row) for row in result] if result.returns_rows else []

    def guard(self, site: Site) -> None:
        hooks.of_connection(self._given).open.append(site)

    def after_commit(self, callback: Callable[[], None]) -> bool:
        hooks.of_connection(self._given).callback = callback
        return True


class SessionHandle(ConnectionHandle):
    """``Session``: pending changes are flushed first, then the row goes over the session's own connection."""

    __slots__ = ("_found", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._found: Connection | None = None

    def connection(self) -> Connection:
        from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError

        if self._found is not None:
            return self._found
        try:
            self._found = self._session.connection()
            return self._found
        except UnboundExecutionError as error:
            raise MisuseError(
                "this Session has no single database to write to (it is unbound, or bound per class). Call "
                "session.flush() and pass session.connection(bind_arguments={'mapper': YourClass}) instead of it"
            ) from error
        except InvalidRequestError as error:
            if error.code != "isce":
                raise
            raise MisuseError(
                "this Session is being changed just now, by the listener that calls outbox.add() or by another task. "
                "In a listener, pass the connection that it gets instead of the session"
            ) from error

    def flush(self) -> None:
        if not self._session._flushing:  # a listener of the flush itself: what is pending goes out with it
            self._session.flush()

    def guard(self, site: Site) -> None:
        hooks.watch_forgotten(self._session, site)

    def after_commit(self, callback: Callable[[], None]) -> bool:
        hooks.of_session(self._session).callback = callback
        return True


class AsyncConnectionHandle(CallerHandle):
    """``AsyncConnection``. What needs the database waits for the ``await``."""

    __slots__ = ("_given",)
    is_async = True

    def __init__(self, given: AsyncConnection) -> None:
        self._given = given

    def _sync(self) -> ConnectionHandle | None:
        started = self._given.sync_connection  # None before `await connection.start()`
        return None if started is None else ConnectionHandle(started)

    async def _run(self, work: Callable[[ConnectionHandle], Any]) -> Any:
        return await self._given.run_sync(lambda connection: work(ConnectionHandle(connection)))

    @property
    def dialect(self) -> Dialect:
        return _dialect(self._given.dialect.name)

    def refuse_autocommit(self) -> None:
        """Decided when awaited, by ``arefuse_autocommit``."""

    async def arefuse_autocommit(self) -> None:
        await self._run(lambda handle: handle.refuse_autocommit())

    async def aexecute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        rows: Rows = await self._run(lambda handle: handle.execute(sql, params))
        return rows

    async def aflush(self) -> None:
        await self._run(lambda handle: handle.flush())

    def guard(self, site: Site) -> None:
        sync = self._sync()
        if sync is not None:
            sync.guard(site)

    def after_commit(self, callback: Callable[[], None]) -> bool:
        sync = self._sync()
        return sync is not None and sync.after_commit(callback)


class AsyncSessionHandle(AsyncConnectionHandle):
    """``AsyncSession``."""

    __slots__ = ("_session",)

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def _sync(self) -> ConnectionHandle | None:
        return SessionHandle(self._session.sync_session)

    async def _run(self, work: Callable[[ConnectionHandle], Any]) -> Any:
        return await self._session.run_sync(lambda session: work(SessionHandle(session)))

    @property
    def dialect(self) -> Dialect:
        from sqlalchemy.exc import UnboundExecutionError

        try:
            return _dialect(self._session.get_bind().dialect.name)
        except UnboundExecutionError as error:
            raise MisuseError(
                "this AsyncSession has no single database to write to (it is unbound, or bound per class). Await "
                "session.flush() and pass await session.connection(bind_arguments={'mapper': YourClass}) instead of it"
            ) from error


def _adapted(connection: Connection, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arrays as psycopg writes them in binary, which no setting of the session changes."""
    if not connection.dialect.driver.startswith("psycopg") or connection.dialect.driver == "psycopg2":
        return params
    if not any(type(value) is list for value in params.values()):
        return params
    from relevo.storage.handles.psycopg_types import Array, teach

    teach(connection.connection.driver_connection)
    return {name: Array(value) if type(value) is list else value for name, value in params.items()}


def _dialect(name: str) -> Dialect:
    try:
        return _DIALECTS[name]
    except KeyError:
        raise ConfigError(f"the outbox lives in PostgreSQL or SQLite, and this engine is for {name!r}") from None


def driver_commits(connection: Connection) -> bool:
    """Whether the driver below would commit a statement by itself just now."""
    from relevo.storage.handles import handle_for

    pooled = connection.connection
    dbapi: Any = pooled.dbapi_connection
    if connection.dialect.name != "sqlite" and getattr(dbapi, "autocommit", False) is not True:
        return (
            False  # SQLAlchemy's own asyncpg wrapper begins lazily, so the driver itself is asked only under autocommit
        )
    try:
        return handle_for(pooled.driver_connection).commits_by_itself()
    except MisuseError as error:
        if isinstance(error, NotInTransactionError):
            raise
        return True  # a driver we do not know, in autocommit
