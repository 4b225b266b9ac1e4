"""A blocking connection that runs SQL texts as they are, for migrations and grants: an operator's act, not a hot path.

A text may hold several statements and has no parameters, so that what ``relevo migrate --sql`` prints is what
``relevo migrate`` runs.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any, Protocol

from relevo.bounds import CONNECT_S, OPERATOR_ANSWER_S
from relevo.clients import dialect_of
from relevo.clients.conninfo import connecting
from relevo.clients.refusal import answered, ask_refusal
from relevo.clients.sqlite import connect, sqlite_path
from relevo.clients.sqlstate import explain, explain_sqlite
from relevo.errors import ConfigError, MissingExtraError, RelevoError, SchemaError
from relevo.script import Rows
from relevo.settings import DatabaseSettings, redact, redact_text

_RIGHTS = {
    "42501": "{}: this role lacks a right that creating Relevo's tables needs ({}). Run `relevo migrate` as a role "
    "that may create in the schema, or hand the output of `relevo migrate --sql` to somebody who may",
    "3F000": "{}: {}. Set database.schema to the schema that shall hold the tables; it is created if missing",
}


class DatabaseError(RelevoError):
    """The database refused a statement. ``code`` is its SQLSTATE, or SQLite's result code as text."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class TextSession(Protocol):
    """One connection, one thread. Raises ``UnreachableError``, ``SchemaError`` or ``DatabaseError``."""

    @property
    def url(self) -> str:
        """For messages: without the password."""

    def execute(self, text: str) -> Rows:
        """Run all statements of ``text``; the rows of the last one."""

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Begin (on SQLite as the writer), then commit, or roll back on any error."""

    def close(self) -> None: ...


@contextlib.contextmanager
def text_session(settings: DatabaseSettings) -> Iterator[TextSession]:
    """Connect to the configured database, and close at the end."""
    session: TextSession
    session = PostgresSession(settings) if dialect_of(settings.url) == "postgresql" else SqliteSession(settings)
    try:
        yield session
    finally:
        session.close()


class PostgresSession:
    """psycopg without parameters speaks the simple protocol, which takes several statements at once."""

    def __init__(self, settings: DatabaseSettings) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise MissingExtraError("psycopg", "postgres", "PostgreSQL") from None
        self._psycopg = psycopg
        self.url = redact(settings.url)
        scheme, separator, rest = settings.url.partition("://")
        conninfo = f"{scheme.partition('+')[0]}{separator}{rest}"
        with self._explained(conninfo):
            params = connecting(conninfo, OPERATOR_ANSWER_S, CONNECT_S)
            self._connection = psycopg.connect(**params | {"application_name": "relevo"}, autocommit=True)
        encoding = self._connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            self._connection.close()
            raise ConfigError(
                f"the database {self.url} is in the encoding {encoding}, which cannot store every message, key and "
                "error text. Create one with: create database … encoding 'UTF8' template template0"
            )

    def execute(self, text: str) -> Rows:
        with self._explained():
            cursor = self._connection.execute(text.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description is not None else ()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._explained(), self._connection.transaction():
            yield

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _explained(self, conninfo: str = "") -> Iterator[None]:
        """``conninfo``: while connecting with it."""
        try:
            yield
        except self._psycopg.Error as error:
            refusal = ask_refusal(conninfo) if conninfo and not error.sqlstate and answered(str(error)) else None
            code = error.sqlstate or refusal
            code = code or (
                "08006" if isinstance(error, (self._psycopg.OperationalError, self._psycopg.InterfaceError)) else None
            )
            detail = redact_text(error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__)
            known: RelevoError | None = SchemaError(_RIGHTS[code].format(self.url, detail)) if code in _RIGHTS else None
            known = known or explain(code, detail, self.url)
            raise known or DatabaseError(f"{self.url}: {detail} ({code})", str(code)) from error


class SqliteSession:
    """sqlite3 statement by statement: its ``executescript`` would commit the open transaction first."""

    def __init__(self, settings: DatabaseSettings) -> None:
        path = sqlite_path(settings.url)
        self.url = f"sqlite:///{path}"
        with self._explained():
            self._connection = connect(path, create=True)

    def execute(self, text: str) -> Rows:
        rows: list[Any] = []
        with self._explained():
            for statement in sqlite_statements(text):
                rows = self._connection.execute(statement).fetchall()
        return rows

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._explained():
            self._connection.execute("begin immediate")
            try:
                yield
                self._connection.execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                raise

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            known = None if code == sqlite3.SQLITE_ERROR else explain_sqlite(error, self.url)
            raise known or DatabaseError(f"{self.url}: {error}", str(code)) from error


def sqlite_statements(text: str) -> Iterator[str]:
    """The single statements of ``text``; a trigger's body stays whole (``sqlite3.complete_statement`` knows)."""
    *parts, rest = text.split(";")
    statement = ""
    for part in parts:
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if (statement + rest).strip():
        yield statement + rest


__all__ = ["DatabaseError", "PostgresSession", "SqliteSession", "TextSession", "sqlite_statements", "text_session"]
