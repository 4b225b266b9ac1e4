"""The tables for tests of single parts, made by the text of `relevo migrate --sql`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from relevo.catalog import DEFAULT_PREFIX, Catalog
from relevo.storage.migrating import script


def create_schema(url: str, schema: str | None = None, prefix: str = DEFAULT_PREFIX, source: str = "mark") -> None:
    """Create Relevo's tables at a PostgreSQL URL or an SQLite path."""
    if url.startswith("postgresql:"):
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(script(Catalog("postgresql", schema, prefix), source).encode())
        return
    connection = sqlite3.connect(Path(url), isolation_level=None)
    try:
        connection.execute("pragma journal_mode = wal")
        connection.executescript(script(Catalog("sqlite", schema, prefix), source))
    finally:
        connection.close()
