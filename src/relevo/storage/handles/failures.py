"""Failures of an append that are the installation's, told by code: SQLSTATE, or SQLite's result codes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from relevo.catalog import Catalog
from relevo.errors import SchemaError

_MISSING, _OLDER, _FORBIDDEN, _READ_ONLY = ("42P01", "3F000"), "42703", "42501", "25006"


def explain(error: BaseException, catalog: Catalog, table: str = "outbox") -> SchemaError | None:
    """A ``SchemaError`` for a missing table or schema, a missing right or a read-only transaction; ``None`` for the
    rest, which stays the caller's own exception. SQLite's missing tables have no code: ask ``asks_for_table``."""
    name = catalog.table(table)
    for cause in causes(error):
        sqlstate = getattr(cause, "sqlstate", None)
        if sqlstate in _MISSING:
            return missing(name)
        if sqlstate == _OLDER:
            return SchemaError(f"the table {name} lacks a column: it is older than this version. Run: relevo migrate")
        if sqlstate == _FORBIDDEN:
            return SchemaError(
                f"the database role lacks a right on {name} (insert; select for find()"
                + (f'; usage on schema "{catalog.schema}"' if catalog.schema else "")
                + "). `relevo migrate --grant writer:ROLE --sql` prints the grants"
            )
        if sqlstate == _READ_ONLY:
            return _read_only(name)
        if isinstance(cause, sqlite3.Error):
            code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_READONLY:
                return _read_only(name)
            if code in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PERM):
                return SchemaError(f"this SQLite connection may not write {name} (its authorizer or the file's rights)")
    return None


def asks_for_table(error: BaseException) -> bool:
    """Whether this is SQLite's generic error, which a missing table shares with much else."""
    return any(
        isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR
        for cause in causes(error)
    )


def missing(name: str) -> SchemaError:
    return SchemaError(
        f"the table {name} does not exist in this database. Run: relevo migrate (with the same schema and prefix)"
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what SQLAlchemy wrapped (``orig``), and what those came from."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        current = todo.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        original = getattr(current, "orig", None)
        todo += [current.__cause__, original if isinstance(original, BaseException) else None]


def _read_only(name: str) -> SchemaError:
    return SchemaError(f"{name} cannot be written: this is a read-only transaction, database or standby. Use a primary")
