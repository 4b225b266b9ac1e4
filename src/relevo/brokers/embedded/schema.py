"""Opening and, the first time, creating the broker's file."""

from __future__ import annotations

import sqlite3
import time
from importlib import resources
from pathlib import Path
from typing import Final

from relevo.brokers.embedded.filesystem import refuse_network
from relevo.errors import ConfigError

APPLICATION_ID: Final = 0x524C564F  # "RLVO"
VERSION: Final = 1


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection with the durability the broker promises; creates the tables in a new file.

    Raises ``ConfigError`` for a place or file that cannot be a broker's, ``sqlite3.Error`` for what may pass.
    """
    refuse_network(path)
    if not path.parent.is_dir():
        raise ConfigError(f"broker.url: the folder {path.parent} does not exist. Create it first")
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
    try:
        _use_wal(connection, busy_timeout_s)
        # An accepted message survives a power cut: in WAL mode only FULL syncs at every commit.
        connection.execute("pragma synchronous = full")
        _create_or_check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switching the journal mode does not wait by ``busy_timeout`` when another process is switching it too."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _create_or_check(connection: sqlite3.Connection, path: Path) -> None:
    if _identity(connection) != (APPLICATION_ID, VERSION):
        connection.execute("begin immediate")
        try:
            application_id, version = _identity(connection)
            (tables,) = connection.execute("select count(*) from sqlite_schema").fetchone()
            if application_id == APPLICATION_ID and version > VERSION:
                raise ConfigError(f"{path} was made by a newer Relevo (format {version}, known here: {VERSION})")
            if application_id != APPLICATION_ID and tables:
                raise ConfigError(f"{path} is another program's database. Give the embedded broker a file of its own")
            if application_id != APPLICATION_ID:
                text = (resources.files("relevo.brokers.embedded") / "sql" / "schema.sql").read_text("utf-8")
                for statement in _statements(text):
                    connection.execute(statement)
                connection.execute(f"pragma application_id = {APPLICATION_ID}")
                connection.execute(f"pragma user_version = {VERSION}")
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    (application_id,) = connection.execute("pragma application_id").fetchone()
    (version,) = connection.execute("pragma user_version").fetchone()
    return application_id, version


def _statements(text: str) -> list[str]:
    """The statements of a script, one by one: ``executescript`` would commit the transaction first."""
    found, rest = [], ""
    for line in text.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    return found
