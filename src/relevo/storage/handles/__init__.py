"""The caller's connection, whatever library it comes from.

Kinds are told by the names of the classes in ``__mro__``, so that no library is imported that the application does not
use itself, and subclasses are recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from relevo.errors import MisuseError
from relevo.storage.handles.base import CallerHandle, Site

__all__ = ["ACCEPTED", "CallerHandle", "Site", "handle_for"]

ACCEPTED = (
    "SQLAlchemy Session, AsyncSession, Connection, AsyncConnection and the scoped sessions; psycopg Connection and "
    "AsyncConnection; asyncpg Connection; sqlite3.Connection; aiosqlite Connection"
)


def handle_for(given: object) -> CallerHandle:
    """The handle of a session or connection; raises ``MisuseError`` for anything else."""
    kind = type(given)
    if kind not in _makers:
        _makers[kind] = _find_maker(kind)
    make = _makers[kind]
    if make is None:
        hint = _HINTS.get(kind.__name__, "")
        raise MisuseError(
            f"{kind.__module__}.{kind.__qualname__} is not a session or connection.{hint} Accepted: {ACCEPTED}"
        )
    return make(given)


_HINTS = {
    "Engine": " Open a transaction on it (engine.begin()) and pass the connection.",
    "AsyncEngine": " Open a transaction on it (engine.begin()) and pass the connection.",
    "sessionmaker": " Call it, and pass the session.",
    "async_sessionmaker": " Call it, and pass the session.",
    "Cursor": " Pass its connection.",
    "AsyncCursor": " Pass its connection.",
    "Pool": " Take a connection from it, and pass that.",
    "ConnectionPool": " Take a connection from it, and pass that.",
    "AsyncConnectionPool": " Take a connection from it, and pass that.",
}

Make = Callable[[Any], CallerHandle]

_KINDS = {
    ("sqlalchemy", "Session"): "sqlalchemy.SessionHandle",
    ("sqlalchemy", "scoped_session"): "sqlalchemy.SessionHandle",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy.AsyncSessionHandle",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy.AsyncSessionHandle",
    ("sqlalchemy", "Connection"): "sqlalchemy.ConnectionHandle",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy.AsyncConnectionHandle",
    ("psycopg", "Connection"): "psycopg.PsycopgHandle",
    ("psycopg", "AsyncConnection"): "psycopg.AsyncPsycopgHandle",
    ("asyncpg", "Connection"): "asyncpg.AsyncpgHandle",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg.AsyncpgHandle",
    ("sqlite3", "Connection"): "sqlite.SqliteHandle",
    ("aiosqlite", "Connection"): "sqlite.AiosqliteHandle",
}
"""(package, class) of what is given, and the module and class here."""

_REGISTRIES = ("scoped_session", "async_scoped_session")
"""Called without arguments, they give the session of the current scope."""


_makers: dict[type, Make | None] = {}


def _find_maker(kind: type) -> Make | None:
    for base in kind.__mro__:
        name = base.__qualname__
        found = _KINDS.get((base.__module__.partition(".")[0], name))
        if found is not None:
            module, _, cls = found.partition(".")
            make: Make = getattr(import_module(f"{__name__}.{module}"), cls)
            return _of_registry(make) if name in _REGISTRIES else make
    return None


def _of_registry(make: Make) -> Make:
    return lambda registry: make(registry())
