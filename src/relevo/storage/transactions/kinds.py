"""The kinds of ``tx`` a handler can ask for, told by the names of classes, so that nothing is imported to tell them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Library = Literal["sqlalchemy", "psycopg", "asyncpg", "sqlite3"]


@dataclass(frozen=True, slots=True)
class Kind:
    """``is_async``: handlers with it are ``async def``. ``session``: an ORM session, not a connection."""

    name: str
    library: Library
    is_async: bool
    session: bool = False


SESSION = Kind("sqlalchemy Session", "sqlalchemy", is_async=False, session=True)
ASYNC_SESSION = Kind("sqlalchemy AsyncSession", "sqlalchemy", is_async=True, session=True)
CONNECTION = Kind("sqlalchemy Connection", "sqlalchemy", is_async=False)
ASYNC_CONNECTION = Kind("sqlalchemy AsyncConnection", "sqlalchemy", is_async=True)
PSYCOPG = Kind("psycopg Connection", "psycopg", is_async=False)
ASYNC_PSYCOPG = Kind("psycopg AsyncConnection", "psycopg", is_async=True)
ASYNCPG = Kind("asyncpg Connection", "asyncpg", is_async=True)
SQLITE = Kind("sqlite3.Connection", "sqlite3", is_async=False)
SQLITE_ON_LOOP = Kind("sqlite3.Connection", "sqlite3", is_async=True)

_BY_CLASS = {
    ("sqlalchemy", "Session"): SESSION,
    ("sqlalchemy", "AsyncSession"): ASYNC_SESSION,
    ("sqlalchemy", "Connection"): CONNECTION,
    ("sqlalchemy", "AsyncConnection"): ASYNC_CONNECTION,
    ("psycopg", "Connection"): PSYCOPG,
    ("psycopg", "AsyncConnection"): ASYNC_PSYCOPG,
    ("asyncpg", "Connection"): ASYNCPG,
    ("sqlite3", "Connection"): SQLITE,
}
_BY_TEXT = {"Session": SESSION, "AsyncSession": ASYNC_SESSION}
ACCEPTED = ", ".join(kind.name for kind in _BY_CLASS.values())


def kind_of(annotation: object) -> Kind | None:
    """The kind an annotation names; ``None`` when it names none. A string (imported for type checking only) counts when
    its last part is unmistakable."""
    if isinstance(annotation, str):
        text = annotation.strip("'\" ").partition("[")[0]
        module, _, name = text.rpartition(".")
        return _BY_CLASS.get((module.partition(".")[0], name)) or _BY_TEXT.get(name)
    origin = getattr(annotation, "__origin__", annotation)
    for base in getattr(origin, "__mro__", ()):
        found = _BY_CLASS.get((base.__module__.partition(".")[0], base.__qualname__))
        if found is not None:
            return found
    return None
