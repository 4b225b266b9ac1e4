"""The tables for tests of single parts, applied from the migration files themselves."""

from __future__ import annotations

import sqlite3
from importlib import resources
from pathlib import Path

from relevo.ports.database import Dialect
from relevo.storage.catalog import DEFAULT_PREFIX, Catalog

LANES = 64


def statements(dialect: Dialect, schema: str | None = None, prefix: str = DEFAULT_PREFIX) -> str:
    """All migrations, the indexes of `mark`, and the rows of meta and lane, as one text."""
    catalog = Catalog(dialect, schema, prefix)
    folder = resources.files("relevo.storage") / ("postgres" if dialect == "postgresql" else dialect) / "migrations"
    files = [*sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("0")), "source_mark.sql"]
    texts = [catalog.fill((folder / name).read_text("utf-8")) for name in files]
    if schema is not None:
        texts.insert(0, f'create schema if not exists "{schema}";')
    meta = catalog.table("meta")
    texts.append(f"insert into {meta} (schema_version, oldest_code, source, lanes) values (1, 1, 'mark', {LANES});")
    texts += [f"insert into {catalog.table('lane')} (lane) values ({lane});" for lane in range(LANES)]
    return "\n".join(texts)


def create_schema(url: str, schema: str | None = None, prefix: str = DEFAULT_PREFIX) -> None:
    """Create Relevo's tables at a PostgreSQL URL or an SQLite path."""
    if url.startswith("postgresql:"):
        import psycopg

        with psycopg.connect(url) as connection:
            connection.execute(statements("postgresql", schema, prefix).encode())
        return
    connection = sqlite3.connect(Path(url))
    try:
        connection.executescript(statements("sqlite", schema, prefix))
        connection.execute("pragma journal_mode = wal")
    finally:
        connection.close()
