"""Handlers' transactions on psycopg 3: ``Connection`` and ``AsyncConnection``.

While the handler runs, ``commit``, ``rollback`` and ``close`` of its connection raise, and so does every statement that
would end the transaction (``watching``); ``conn.transaction()`` makes a savepoint and is allowed. Several handlers in
one transaction may share a pipeline (``pipelining``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from inspect import isawaitable
from typing import Any

from relevo.bounds import ANSWER_S, CONNECT_S
from relevo.clients.conninfo import connecting
from relevo.clients.sqlstate import sqlstates
from relevo.errors import MissingExtraError, MisuseError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.settings import DatabaseSettings
from relevo.storage.transactions import pipelining
from relevo.storage.transactions.base import DIVISION_BY_ZERO, MISUSE, committing
from relevo.storage.transactions.commands import acommand, command
from relevo.storage.transactions.lending import Lender, own, resolved
from relevo.storage.transactions.psycopg_watched import Watched


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

    def forget_idle(self) -> None:
        self._lender.forget()

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
    options = connecting(conninfo, ANSWER_S, CONNECT_S) | {"application_name": "relevo consumer"}
    if not settings.prepared_statements:
        options["prepare_threshold"] = None
    pooler = not settings.prepared_statements
    return PsycopgTransactions(own(lambda: kind(**options), idles=_idles), is_async=is_async, pooler=pooler)


def _idles(connection: Any) -> bool:
    return not connection.pgconn.transaction_status


class PsycopgUnit(Watched):
    def begin(self) -> None:
        connection = self._lender.acquire()
        self._took(connection, _kinds()[0])
        if connection.autocommit:
            connection.execute("begin")

    def prove(self) -> None:
        """The handler gets the very connection."""

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._handle is not None
        return self._handle.execute(sql, params)

    def enter(self) -> object:
        return self._enter()

    def leave(self) -> None:
        self._leave()

    def pipeline(self) -> None:
        self._pipeline = pipelining.pipeline_on(self._connection)
        self._pipeline.__enter__()

    def sync(self) -> None:
        self._lift()
        self._leave_pipeline()
        self._synced()

    def _leave_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            try:
                pipeline.__exit__(None, None, None)
            finally:
                pipelining.let_go(self._connection)

    def commit(self, xid: str | None = None) -> None:
        self._lift()
        try:
            command(self._connection, committing(xid).encode())
        except Exception as error:
            if DIVISION_BY_ZERO in sqlstates(error):
                raise MisuseError(MISUSE) from error
            raise

    def rollback(self) -> None:
        self._lift()
        if self._connection is not None and not self._connection.closed:
            with suppress(Exception):  # what failed in a pipeline is told again when it ends
                self._leave_pipeline()
            try:
                self._refuse_half_read()
                self._connection.rollback()
            except Exception:  # noqa: BLE001 - the connection is thrown away, and the server rolls back
                self._connection.close()

    def close(self) -> None:
        connection, unusable = self._took_back()
        if connection is not None:
            self._lender.release(connection, unusable)


class AsyncPsycopgUnit(Watched):
    async def begin(self) -> None:
        connection = self._lender.acquire()
        if isawaitable(connection):
            connection = await connection
        self._took(connection, _kinds()[1])
        if connection.autocommit:
            await connection.execute("begin")

    async def prove(self) -> None:
        """The handler gets the very connection."""

    async def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._handle is not None
        return await self._handle.aexecute(sql, params)

    async def enter(self) -> object:
        return self._connection if self._on is not None else self._enter()

    async def leave(self) -> None:
        self._leave()

    async def pipeline(self) -> None:
        self._pipeline = pipelining.pipeline_on(self._connection)
        await self._pipeline.__aenter__()

    async def sync(self) -> None:
        self._lift()
        await self._leave_pipeline()
        self._synced()

    async def _leave_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            try:
                await pipeline.__aexit__(None, None, None)
            finally:
                pipelining.let_go(self._connection)

    async def commit(self, xid: str | None = None) -> None:
        self._lift()
        try:
            await acommand(self._connection, committing(xid).encode())
        except Exception as error:
            if DIVISION_BY_ZERO in sqlstates(error):
                raise MisuseError(MISUSE) from error
            raise

    async def rollback(self) -> None:
        self._lift()
        if self._connection is not None and not self._connection.closed:
            with suppress(Exception):  # what failed in a pipeline is told again when it ends
                await self._leave_pipeline()
            try:
                self._refuse_half_read()
                await self._connection.rollback()
            except Exception:  # noqa: BLE001 - the connection is thrown away, and the server rolls back
                await self._connection.close()

    async def close(self) -> None:
        connection, unusable = self._took_back()
        if connection is not None:
            await resolved(self._lender.release(connection, unusable))


@cache
def _kinds() -> tuple[Any, Any]:
    """Looked up once: an import within a function is not free."""
    from psycopg import AsyncConnection, Connection

    return Connection, AsyncConnection
