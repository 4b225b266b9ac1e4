"""Handlers' transactions on asyncpg. Its connections have no ``commit``; a nested ``transaction()`` is a savepoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relevo.errors import MissingExtraError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.settings import DatabaseSettings
from relevo.storage.handles import CallerHandle, handle_for
from relevo.storage.transactions.base import AbortedTransactionError
from relevo.storage.transactions.lending import Lender, own, resolved
from relevo.storage.transactions.status import still_open

if TYPE_CHECKING:
    from asyncpg import Connection


class AsyncpgTransactions:
    """``Transactions`` from a lender of asyncpg connections."""

    dialect: Dialect = "postgresql"
    is_async = True
    pipelines = False

    def __init__(self, lender: Lender) -> None:
        self._lender = lender

    def unit(self, *, many: bool = False) -> AsyncpgUnit:
        return AsyncpgUnit(self._lender)

    async def aclose(self) -> None:
        for pending in self._lender.close():
            await pending


def opened(settings: DatabaseSettings) -> AsyncpgTransactions:
    """Transactions on connections of Relevo's own to the configured database."""
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise MissingExtraError("asyncpg", "asyncpg", "A handler with an asyncpg connection") from None
    dsn = f"postgresql:{settings.url.partition(':')[2]}"
    options: dict[str, Any] = {"timeout": 5}
    if not settings.prepared_statements:
        options["statement_cache_size"] = 0
    return AsyncpgTransactions(own(lambda: asyncpg.connect(dsn, **options)))


class AsyncpgUnit:
    misused = False

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self._connection: Connection[Any] | None = None
        self._handle: CallerHandle | None = None

    async def begin(self) -> None:
        self._connection = await resolved(self._lender.acquire())
        self._handle = handle_for(self._connection)
        await self._connection.execute("begin")

    async def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._handle is not None
        return await self._handle.aexecute(sql, params)

    async def enter(self) -> object:
        return self._connection

    async def leave(self) -> None:
        still_open(self._connection)

    async def pipeline(self) -> None:
        """asyncpg has none."""

    async def sync(self) -> None: ...

    async def commit(self) -> None:
        assert self._connection is not None
        if await self._connection.execute("commit") == "ROLLBACK":  # the tag is the only sign of an aborted transaction
            raise AbortedTransactionError

    async def rollback(self) -> None:
        connection = self._connection
        if connection is not None and not connection.is_closed():
            try:
                if connection.is_in_transaction():
                    await connection.execute("rollback")
            except Exception:  # noqa: BLE001 - the connection is thrown away, and the server rolls back
                connection.terminate()

    async def close(self) -> None:
        connection, self._connection, self._handle = self._connection, None, None
        if connection is not None:
            await resolved(self._lender.release(connection, connection.is_closed()))

    @property
    def broken(self) -> bool:
        return self._connection is not None and self._connection.is_closed()
