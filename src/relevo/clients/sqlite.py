"""SQLite through the standard library: one connection, used by one thread, driven from the event loop."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from relevo.catalog import Catalog
from relevo.clients.sqlstate import explain_sqlite, note_failure
from relevo.errors import ConfigError, SchemaError, UnreachableError
from relevo.ports.database import Dialect
from relevo.script import Rows, Script, Statement, run
from relevo.settings import DatabaseSettings

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
"""How long a writer waits for another process's write transaction before it is *unavailable*."""


class SqliteDatabase:
    """The ``Database`` port on one SQLite file. Transactions of one process queue up in its thread; those of several
    processes wait for each other by ``busy_timeout``. A cancelled ``run`` still completes or rolls back there."""

    dialect: Dialect = "sqlite"

    def __init__(self, settings: DatabaseSettings) -> None:
        path = sqlite_path(settings.url)
        self._path = path.absolute()  # a handler may go to another folder
        self._catalog = Catalog("sqlite", settings.schema, settings.prefix)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="relevo-sqlite")
        self._connection: sqlite3.Connection | None = None
        self.url = f"sqlite:///{path}"

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
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, script, read_only)

    async def aclose(self) -> None:
        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        if not self._thread._shutdown:
            await asyncio.get_running_loop().run_in_executor(self._thread, close)
            self._thread.shutdown(wait=False)

    def _run(self, script: Script[T], read_only: bool) -> T:
        try:
            connection = self._connection or self._connect()
            connection.execute("begin" if read_only else "begin immediate")
            try:
                result = run(script, lambda statement: self._execute(connection, statement))
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        except sqlite3.Error as error:
            raise explain_sqlite(error, self.url) or error from error
        return result

    def _execute(self, connection: sqlite3.Connection, statement: Statement) -> Rows:
        sql, params = self._catalog.text(statement.name), adapted(statement.params)
        try:
            try:
                return connection.execute(sql, params).fetchall()
            except sqlite3.OperationalError as error:
                if not read_leniently(connection, error, sql):
                    raise
                return connection.execute(sql, params).fetchall()
        except sqlite3.Error as error:
            note_failure(error, statement.name)
            raise

    def _connect(self) -> sqlite3.Connection:
        self._connection = connect(self._path)
        return self._connection


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection as Relevo wants it: WAL, waiting writers, full durability, no implicit transactions.

    Only ``relevo migrate`` creates a file: anywhere else a path that is not there is a wrong path (``SchemaError``).
    """
    if not create and path.parent.exists() and not path.exists():
        raise SchemaError(
            f"Relevo's tables are missing: there is no file {path}. Check the path, or run: relevo migrate"
        )
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_MS / 1000)
    connection.execute("pragma journal_mode = wal")
    # A held copy must be on the disk before its broker delivery is settled.
    connection.execute("pragma synchronous = full")
    return connection


def read_leniently(connection: sqlite3.Connection, error: sqlite3.OperationalError, sql: str) -> bool:
    """Whether ``error`` is about a text that is not UTF-8, and ``sql`` can be asked again.

    SQLite keeps such a text; Python's client refuses the whole result for it. From then on ``connection`` gives such a
    byte as ``\\xNN``. Not from the start: it costs a call for each text."""
    if connection.text_factory is _lenient or not str(error).startswith("Could not decode to UTF-8"):
        return False
    connection.text_factory = _lenient
    if "returning" in sql.lower():  # it wrote already: the next transaction reads
        raise UnreachableError("a text of a row is not UTF-8. It is read with \\xNN for its bytes at the next try")
    return True


def _lenient(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def sqlite_path(url: str) -> Path:
    """The file of ``sqlite:///relative.db`` or ``sqlite:////absolute.db`` (as SQLAlchemy reads it)."""
    scheme, separator, path = url.partition(":///")
    if not separator or not path or path == ":memory:":
        raise ConfigError(
            f"database.url {scheme + separator + path!r} names no file: use sqlite:///relative.db or "
            "sqlite:////absolute/path.db (memory is not durable, so it is not offered)"
        )
    return Path(path.partition("?")[0])


def adapted(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters as SQLite's types: UUIDs as text, times as integer milliseconds, arrays as JSON text."""
    return {name: _adapt(value) for name, value in params.items()}


def _adapt(value: Any) -> Any:
    match value:
        case UUID():
            return str(value)
        case datetime():
            return int(value.astimezone(UTC).timestamp() * 1000)
        case list() | tuple():
            return json.dumps([_plain(_adapt(item)) for item in value])
    return value


def _plain(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value
