"""psycopg 3: ``Connection`` and ``AsyncConnection``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from relevo.catalog import numbered, pyformat
from relevo.errors import NotInTransactionError
from relevo.ports.database import Dialect
from relevo.script import Ids, Rows
from relevo.storage.handles.adapt import to_plain
from relevo.storage.handles.base import CallerHandle
from relevo.storage.handles.psycopg_types import async_cursors, cursors

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


_ASK = (b"savepoint relevo_asks", b"release savepoint relevo_asks")
"""Outside a transaction block, also in the implicit one of a pipeline, the server refuses a savepoint."""


@cache
def _text(sql: str) -> bytes:
    return pyformat(sql).encode()


@cache
def _numbered(sql: str) -> tuple[bytes, list[str]]:
    text, names = numbered(sql)
    return text.encode(), names


class PsycopgHandle(CallerHandle):
    """Whatever row factory and cursor class the caller chose, rows come as tuples and parameters by name. Whether
    statements are prepared is the caller's choice too (``prepare_threshold``)."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return "postgresql"

    def commits_by_itself(self) -> bool:
        decided = _commits_by_itself(self._connection)
        if decided is not None:
            return decided
        from psycopg import Cursor
        from psycopg.errors import NoActiveSqlTransaction

        try:
            for text in _ASK:
                Cursor(self._connection).execute(text)
            Cursor(self._connection).execute(b"select 1").fetchall()
        except NoActiveSqlTransaction:
            return True
        return False

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        raw, client, _, rows = cursors()
        connection = self._connection
        # A client-side cursor may be there for a pooler's sake. Else a raw one: no names to be put in order.
        if issubclass(connection.cursor_factory, client):
            cursor = client(connection, row_factory=rows)
            cursor.execute(_text(sql), {name: _literal(value) for name, value in params.items()})
        else:
            text, names = _numbered(sql)
            cursor = raw(connection, row_factory=rows)
            cursor.execute(text, [_literal(params[name]) for name in names])
        if not _gives_rows(sql):
            return []  # in a pipeline nothing is waited for
        return cursor.fetchall() if cursor.description or not _outside_pipeline(connection) else []

    @property
    def copies(self) -> bool:
        return _outside_pipeline(self._connection)

    def copy(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        _, _, plain, _ = cursors()
        with plain(self._connection) as cursor, cursor.copy(sql.encode()) as copy:
            for row in rows:
                copy.write_row(row)


class AsyncPsycopgHandle(CallerHandle):
    """As ``PsycopgHandle``. psycopg has no hook on commit: a forgotten ``await`` is a warning here."""

    __slots__ = ("_connection",)
    is_async = True

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return "postgresql"

    def commits_by_itself(self) -> bool:
        return _commits_by_itself(self._connection) is not False

    def refuse_autocommit(self) -> None:
        if _commits_by_itself(self._connection):
            raise NotInTransactionError  # what only the server knows is asked when awaited

    async def arefuse_autocommit(self) -> None:
        self.refuse_autocommit()
        if _commits_by_itself(self._connection) is None:
            from psycopg import AsyncCursor
            from psycopg.errors import NoActiveSqlTransaction

            try:
                for text in _ASK:
                    await AsyncCursor(self._connection).execute(text)
                await (await AsyncCursor(self._connection).execute(b"select 1")).fetchall()
            except NoActiveSqlTransaction:
                raise NotInTransactionError from None

    async def aexecute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        raw, client, _, rows = async_cursors()
        connection = self._connection
        if issubclass(connection.cursor_factory, client):
            cursor = client(connection, row_factory=rows)
            await cursor.execute(_text(sql), {name: _literal(value) for name, value in params.items()})
        else:
            text, names = _numbered(sql)
            cursor = raw(connection, row_factory=rows)
            await cursor.execute(text, [_literal(params[name]) for name in names])
        if not _gives_rows(sql):
            return []  # in a pipeline nothing is waited for
        return await cursor.fetchall() if cursor.description or not _outside_pipeline(connection) else []

    @property
    def copies(self) -> bool:
        return _outside_pipeline(self._connection)

    async def acopy(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        _, _, plain, _ = async_cursors()
        async with plain(self._connection) as cursor, cursor.copy(sql.encode()) as copy:
            for row in rows:
                await copy.write_row(row)


def _commits_by_itself(connection: Connection[Any] | AsyncConnection[Any]) -> bool | None:
    """``None``: in a pipeline with something under way the client cannot know."""
    if not connection.autocommit:
        return False
    from psycopg.pq import TransactionStatus

    status = connection.info.transaction_status
    return None if status == TransactionStatus.ACTIVE else bool(status == TransactionStatus.IDLE)


def _literal(value: Any) -> Any:
    kind = type(value)
    if kind is Ids or kind is list or kind is datetime:
        return to_plain(value)
    return value


@cache
def _gives_rows(sql: str) -> bool:
    """Told by the text, since in a pipeline the cursor does not know yet."""
    text = sql.lower()
    return " returning " in f" {' '.join(text.split())} " or text.lstrip().startswith(("select", "with", "values"))


def _outside_pipeline(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """COPY does not go through a pipeline."""
    from psycopg.pq import PipelineStatus

    return connection.pgconn.pipeline_status == PipelineStatus.OFF
