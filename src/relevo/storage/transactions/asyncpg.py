"""Handlers' transactions on asyncpg. Its connections have no ``commit``.

The transaction is begun by asyncpg's own object, so that ``transaction()`` in a handler is a savepoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relevo.bounds import CLEANUP_S, CONNECT_S
from relevo.clients.sqlstate import sqlstates
from relevo.errors import ConfigError, MissingExtraError, MisuseError
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.settings import DatabaseSettings
from relevo.storage.handles import CallerHandle, handle_for
from relevo.storage.handles.asyncpg import AsyncpgHandle
from relevo.storage.transactions.base import (
    DIVISION_BY_ZERO,
    IN_FAILED_TRANSACTION,
    MISUSE,
    OPEN,
    AbortedTransactionError,
    committing,
    wrong_kind,
)
from relevo.storage.transactions.lending import Lender, own, resolved
from relevo.storage.transactions.severing import OnConnection, keep_alive
from relevo.storage.transactions.status import still_open
from relevo.storage.transactions.watching import AsyncpgWatch, Watch

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
        return AsyncpgUnit(self._lender, many)

    def forget_idle(self) -> None:
        self._lender.forget()

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
    options: dict[str, Any] = {"timeout": CONNECT_S}
    if not settings.prepared_statements:
        options["statement_cache_size"] = 0

    async def connect() -> Any:
        connection = await asyncpg.connect(dsn, **options)
        keep_alive(connection)
        return connection

    return AsyncpgTransactions(own(connect, _end, lambda connection: not connection.is_in_transaction()))


async def _end(connection: Connection[Any]) -> None:
    with suppress(Exception):  # it is terminated then
        await connection.close(timeout=CLEANUP_S)


class AsyncpgUnit(OnConnection):
    def __init__(self, lender: Lender, many: bool = False) -> None:
        self._lender = lender
        self._watch = Watch(many=many)
        self._on: AsyncpgWatch | None = None
        self._connection: Connection[Any] | None = None
        self._handle: CallerHandle | None = None

    async def begin(self) -> None:
        connection = await resolved(self._lender.acquire())
        try:
            handle = handle_for(connection)
        except MisuseError as error:
            raise wrong_kind(connection, "an asyncpg Connection") from error
        if not isinstance(handle, AsyncpgHandle):
            raise wrong_kind(connection, "an asyncpg Connection")
        self._connection, self._handle = connection, handle
        if connection.is_in_transaction():
            raise ConfigError(OPEN)
        await connection.transaction().start()

    async def prove(self) -> None:
        """The handler gets the very connection."""

    async def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        assert self._handle is not None
        return await self._handle.aexecute(sql, params)

    async def enter(self) -> object:
        if self._on is None:
            self._on = AsyncpgWatch(self._connection, self._watch)
            self._on.put_on()
        return self._connection

    async def leave(self) -> None:
        self._lift()
        self._watch.check()
        still_open(self._connection)

    def _lift(self) -> None:
        on, self._on = self._on, None
        if on is not None:
            on.lift()

    async def pipeline(self) -> None:
        """asyncpg has none."""

    async def sync(self) -> None: ...

    async def commit(self, xid: str | None = None) -> None:
        assert self._connection is not None
        self._ended()
        try:
            tag = await self._connection.execute(committing(xid))
        except Exception as error:
            codes = list(sqlstates(error))
            if DIVISION_BY_ZERO in codes:
                raise MisuseError(MISUSE) from error
            if IN_FAILED_TRANSACTION in codes:
                raise AbortedTransactionError from error
            raise
        if tag == "ROLLBACK":  # the tag is the only sign of an aborted transaction
            raise AbortedTransactionError

    async def rollback(self) -> None:
        self._lift()
        connection = self._connection
        if connection is not None and not connection.is_closed():
            try:
                self._ended()
                if connection.is_in_transaction():
                    await connection.execute("rollback")
            except Exception:  # noqa: BLE001 - the connection is thrown away, and the server rolls back
                connection.terminate()

    def _ended(self) -> None:
        """The driver's transaction object would hide the server's answer, so it is not asked to commit or roll back."""
        raw: Any = getattr(self._connection, "_con", self._connection)
        raw._top_xact = None

    async def close(self) -> None:
        self._lift()
        connection, self._connection, self._handle = self._connection, None, None
        if connection is not None:
            await resolved(
                self._lender.release(connection, self._distrusted or connection.is_closed() or self._watch.lasts)
            )

    @property
    def broken(self) -> bool:
        return self._connection is not None and self._connection.is_closed()

    bypassed = False

    @property
    def misused(self) -> bool:
        return self._watch.ended
