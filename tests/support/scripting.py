"""Relevo's own scripts, run one transaction each on a plain connection: for tests that are the engine themselves."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any, TypeVar

from relevo.catalog import Catalog, pyformat
from relevo.clients.sqlite import adapted
from relevo.ports.database import Dialect
from relevo.script import Rows, Script, Statement, run
from relevo.storage.migrating import script as schema

T = TypeVar("T")

TABLES = ("held_message", "held_key", "inbox", "outbox", "audit", "job")


class Scripts:
    """``run`` drives one script in one transaction."""

    dialect: Dialect
    catalog: Catalog

    def run(self, script: Script[T]) -> T:
        with self.transaction():
            return run(script, self._execute)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        raise NotImplementedError
        yield

    def _execute(self, statement: Statement) -> Rows:
        raise NotImplementedError

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class SqliteScripts(Scripts):
    """A database in memory, new each time."""

    dialect = "sqlite"

    def __init__(self) -> None:
        self.catalog = Catalog("sqlite")
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript(schema(self.catalog, "mark"))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            self.connection.execute("rollback")
            raise
        self.connection.execute("commit")

    def _execute(self, statement: Statement) -> Rows:
        return self.connection.execute(self.catalog.text(statement.name), adapted(statement.params)).fetchall()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def close(self) -> None:
        self.connection.close()


class PostgresScripts(Scripts):
    """A database that has the tables; emptied each time."""

    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        import psycopg

        self.catalog = Catalog("postgresql")
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("set synchronous_commit = off")
        for table in TABLES:
            self.connection.execute(f"delete from relevo_{table}".encode())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self.connection.transaction():
            yield

    def _execute(self, statement: Statement) -> Rows:
        cursor = self.connection.cursor(binary=True)
        cursor.execute(pyformat(self.catalog.text(statement.name)).encode(), dict(statement.params))
        return cursor.fetchall() if cursor.description is not None else ()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql.encode()).fetchall()

    def close(self) -> None:
        self.connection.close()
