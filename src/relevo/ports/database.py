"""The database port: Relevo's own connections, and the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeVar

from relevo.script import Rows, Script

T = TypeVar("T")
Dialect = Literal["postgresql", "sqlite"]


class Database(Protocol):
    """A small pool of Relevo's own connections to one database, for relay, consumer bookkeeping and tools.

    ``run`` may be called from several tasks of one event loop. It opens one transaction, drives the script, commits;
    on any error it rolls back and raises: ``UnreachableError`` for a lost or refused connection, ``SchemaError`` for
    missing tables or rights, the driver's error otherwise. A connection that broke is replaced at the next call.
    """

    @property
    def dialect(self) -> Dialect: ...

    @property
    def url(self) -> str:
        """For messages: without the password."""

    async def run(
        self,
        script: Script[T],
        *,
        read_only: bool = False,
        single: bool = False,
        idle_timeout_s: float | None = None,
        statement_timeout_s: float | None = None,
        lock_timeout_s: float | None = None,
        by_index: bool = False,
    ) -> T:
        """Drive ``script`` in one transaction. ``read_only``: a single snapshotless read, no write lock on SQLite.
        ``single``: on PostgreSQL the script is one statement, which is a transaction by itself and has no time to idle
        in; on SQLite it may be several, in one transaction as ever.
        ``idle_timeout_s``: when the server ends the session if this process freezes inside (PostgreSQL); 5 s if not
        given. ``statement_timeout_s``: when it ends a statement (PostgreSQL: the driver's error, SQLSTATE 57014); 0:
        never; not given: as the server is set. ``lock_timeout_s``: when it gives up waiting for a lock (SQLSTATE
        55P03), likewise. ``by_index``: on a session whose plans walk indexes, whatever the statistics say, and are made
        once (PostgreSQL): a statement that is prepared while its table is empty would keep its plan until autoanalyze
        comes by, and one with arrays would be planned anew each time."""

    async def aclose(self) -> None: ...


class Handle(Protocol):
    """The caller's connection or session, for the length of one call. Never begins, commits or rolls back.

    ``execute`` (sync) or ``aexecute`` (async) runs one SQL text of the handle's dialect, in named ``:name`` style, and
    returns the rows; ``is_async`` says which one works.
    """

    @property
    def dialect(self) -> Dialect: ...

    @property
    def is_async(self) -> bool: ...

    def refuse_autocommit(self) -> None:
        """Raise ``NotInTransactionError`` where the driver would commit the row by itself."""

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows: ...

    async def aexecute(self, sql: str, params: Mapping[str, Any]) -> Rows: ...

    def flush(self) -> None:
        """Send the caller's pending changes (an ORM session's) before the append takes its ``seq``."""

    async def aflush(self) -> None: ...
