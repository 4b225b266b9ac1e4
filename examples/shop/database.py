"""A plain driver, whichever: sqlite3 or psycopg. An application would use one of them, or SQLAlchemy, directly."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

_NAMED = re.compile(r":(\w+)")


def connect(url: str) -> Any:
    """A connection that opens a transaction at the first statement, to ``sqlite:///file`` or ``postgresql://…``."""
    if url.startswith("sqlite:///"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)
        connection.execute("pragma journal_mode = wal")
        return connection
    import psycopg

    return psycopg.connect(url)


def execute(connection: Any, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    """Run one statement with ``:name`` parameters on either driver; its rows, if it has any."""
    if not isinstance(connection, sqlite3.Connection) and not hasattr(connection, "in_transaction"):
        sql = _NAMED.sub(r"%(\1)s", sql)
    cursor = connection.execute(sql, values)
    return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
