"""Watches what a handler does with the driver's connection below its ``tx``, whichever way it reaches it.

A statement that would end the transaction is refused before it is sent, so that nothing of it is committed. Each driver
has one place that every statement passes: psycopg's manager of prepared statements, asyncpg's ``_get_statement`` and
``execute``, SQLite's authorizer. psycopg's and asyncpg's are not public; tests say when they have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relevo.storage.transactions.watching.asyncpg import AsyncpgWatch
from relevo.storage.transactions.watching.psycopg import PsycopgWatch
from relevo.storage.transactions.watching.sqlite import AiosqliteWatch, SqliteWatch
from relevo.storage.transactions.watching.watch import DriverWatch, Watch

__all__ = ["AsyncpgWatch", "DriverWatch", "PsycopgWatch", "SqliteWatch", "Watch", "driver_watch"]


def driver_watch(driver_connection: Any, watch: Watch) -> DriverWatch | None:
    """The one for a connection below SQLAlchemy's, whose own methods are watched there. ``None``: an unknown driver."""
    for base in type(driver_connection).__mro__:
        make = _BY_PACKAGE.get((base.__module__.partition(".")[0], base.__qualname__))
        if make is not None:
            return make(driver_connection, watch)
    return None


_BY_PACKAGE: dict[tuple[str, str], Callable[[Any, Watch], DriverWatch]] = {
    ("psycopg", "Connection"): lambda connection, watch: PsycopgWatch(connection, watch, ("commit",)),
    ("psycopg", "AsyncConnection"): lambda connection, watch: PsycopgWatch(connection, watch, ("commit",)),
    ("asyncpg", "Connection"): lambda connection, watch: AsyncpgWatch(connection, watch, may_close=True),
    ("sqlite3", "Connection"): SqliteWatch,
    ("aiosqlite", "Connection"): AiosqliteWatch,
}
