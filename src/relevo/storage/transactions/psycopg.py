"""Handlers' transactions on psycopg 3: ``Connection`` and ``AsyncConnection``.

While the handler runs, ``commit``, ``rollback`` and ``close`` of its connection raise; ``conn.transaction()`` makes a
savepoint and is allowed. Several handlers in one transaction may share a pipeline (``pipelining``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relevo.errors import MissingExtraError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.settings import DatabaseSettings
from relevo.storage.handles import CallerHandle, handle_for
from relevo.storage.transactions import pipelining
from relevo.storage.transactions.base import GUARDED, arefuse, refuse
from relevo.storage.transactions.lending import Lender, own, resolved
from relevo.storage.transactions.status import still_open

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


class PsycopgTransactions:
    """``Transactions`` from a lender of psycopg connections."""

    dialect: Dialect = "postgresql"

    def __init__(self, lender: Lender, *, is_async: bool, pooler: bool = False) -> None:
        """``pooler``: one stands between, to which a pipeline may mean nothing."""
        self._lender = lender
        self._pooler = pooler
        self.is_async = is_async

    @property
    def pipelines(self) -> bool:
        from psycopg import Pipeline

        return Pipeline.is_supported() and not self._pooler

    def unit(self, *, many: bool = False) -> PsycopgUnit | AsyncPsycopgUnit:
        return AsyncPsycopgUnit(self._lender, many) if self.is_async else PsycopgUnit(self._lender, many)

    async def aclose(self) -> None:
        for pending in self._lender.close():
            await pending


def opened(settings: DatabaseSettings, *, is_async: bool) -> PsycopgTransactions:
    """Transactions on connections of Relevo's own to the configured database."""
    try:
        import psycopg
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise MissingExtraError("psycopg", "postgres", "A consumer on PostgreSQL") from None
    scheme, _, rest = settings.url.partition(":")
    conninfo = f"{scheme.partition('+')[0]}:{rest}"
    kind: Callable[..., Any] = psycopg.AsyncConnection.connect if is_async else psycopg.Connection.connect
    options: dict[str, Any] = {"application_name": "relevo consumer", "connect_timeout": 5}
    if not settings.prepared_statements:
        options["prepare_threshold"] = None
    pooler = not settings.prepared_statements
    return PsycopgTransactions(own(lambda: kind(conninfo, **options)), is_async=is_async, pooler=pooler)


class PsycopgUnit:
    misused = False

    def __init__(self, lender: Lender, many: bool = False) -> None:
        self._lender = lender
        self._many = many
        self._guarded = False
        self._connection: Connection[Any] | None = None
        self._pipeline: Any = None
        self._handle: CallerHandle | None = None

    def begin(self) -> None:
        connection = self._connection = self._lender.acquire()
        self._handle = handle_for(connection)
        if connection.autocommit:
            connection.execute("begin")

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._handle is not None
        return self._handle.execute(sql, params)

    def enter(self) -> object:
        if not self._guarded:
            _guard(self._connection, refuse, self._many)
            self._guarded = True
        return self._connection

    def leave(self) -> None:
        if not self._many:
            self._unguard()
        if self._pipeline is None:
            still_open(self._connection)

    def _unguard(self) -> None:
        if self._guarded:
            self._guarded = False
            _unguard(self._connection)

    def pipeline(self) -> None:
        assert self._connection is not None
        self._pipeline = pipelining.pipeline_on(self._connection)
        self._pipeline.__enter__()

    def sync(self) -> None:
        self._unguard()
        self._leave_pipeline()
        pipelining.check(self._connection)
        still_open(self._connection)

    def _leave_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            try:
                pipeline.__exit__(None, None, None)
            finally:
                pipelining.let_go(self._connection)

    def commit(self) -> None:
        assert self._connection is not None
        self._unguard()
        self._connection.commit()

    def rollback(self) -> None:
        self._unguard()
        if self._connection is not None and not self._connection.closed:
            with suppress(Exception):  # what failed in a pipeline is told again when it ends
                self._leave_pipeline()
            try:
                self._connection.rollback()
            except Exception:  # noqa: BLE001 - the connection is thrown away, and the server rolls back
                self._connection.close()

    def close(self) -> None:
        self._unguard()
        connection, self._connection, self._handle = self._connection, None, None
        if connection is not None:
            self._lender.release(connection, bool(connection.closed))

    @property
    def broken(self) -> bool:
        return self._connection is not None and bool(self._connection.closed)


class AsyncPsycopgUnit:
    misused = False

    def __init__(self, lender: Lender, many: bool = False) -> None:
        self._lender = lender
        self._many = many
        self._guarded = False
        self._connection: AsyncConnection[Any] | None = None
        self._pipeline: Any = None
        self._handle: CallerHandle | None = None

    async def begin(self) -> None:
        connection = self._connection = await resolved(self._lender.acquire())
        self._handle = handle_for(connection)
        if connection.autocommit:
            await connection.execute("begin")

    async def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._handle is not None
        return await self._handle.aexecute(sql, params)

    async def enter(self) -> object:
        if not self._guarded:
            _guard(self._connection, arefuse, self._many)
            self._guarded = True
        return self._connection

    async def leave(self) -> None:
        if not self._many:
            self._unguard()
        if self._pipeline is None:
            still_open(self._connection)

    def _unguard(self) -> None:
        if self._guarded:
            self._guarded = False
            _unguard(self._connection)

    async def pipeline(self) -> None:
        assert self._connection is not None
        self._pipeline = pipelining.pipeline_on(self._connection)
        await self._pipeline.__aenter__()

    async def sync(self) -> None:
        self._unguard()
        await self._leave_pipeline()
        pipelining.check(self._connection)
        still_open(self._connection)

    async def _leave_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            try:
                await pipeline.__aexit__(None, None, None)
            finally:
                pipelining.let_go(self._connection)

    async def commit(self) -> None:
        assert self._connection is not None
        self._unguard()
        await self._connection.commit()

    async def rollback(self) -> None:
        self._unguard()
        if self._connection is not None and not self._connection.closed:
            with suppress(Exception):  # what failed in a pipeline is told again when it ends
                await self._leave_pipeline()
            try:
                await self._connection.rollback()
            except Exception:  # noqa: BLE001 - the connection is thrown away, and the server rolls back
                await self._connection.close()

    async def close(self) -> None:
        self._unguard()
        connection, self._connection, self._handle = self._connection, None, None
        if connection is not None:
            await resolved(self._lender.release(connection, bool(connection.closed)))

    @property
    def broken(self) -> bool:
        return self._connection is not None and bool(self._connection.closed)


def _guard(connection: Any, replacement: Callable[..., Any], many: bool) -> None:
    """``many``: a COMMIT as SQL would be at the cost of other messages, so it is refused too."""
    own = vars(connection)
    for name in GUARDED:
        own[name] = replacement
    if many:
        pipelining.watch(connection)


def _unguard(connection: Any) -> None:
    if connection is not None:
        own = vars(connection)
        for name in GUARDED:
            own.pop(name, None)
        pipelining.unwatch(connection)
