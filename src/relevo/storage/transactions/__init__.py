"""Where handlers' transactions come from: ``transactions_for`` picks the adapter for a kind of ``tx`` and what the
application gave as ``Consumer(tx=…)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relevo.bounds import ANSWER_S, CONNECT_S
from relevo.clients import dialect_of
from relevo.clients.conninfo import BOUNDS, connecting
from relevo.errors import ConfigError, MissingExtraError
from relevo.settings import DatabaseSettings
from relevo.storage.transactions import kinds
from relevo.storage.transactions.base import (
    AbortedTransactionError,
    AsyncUnit,
    PipelineError,
    StateError,
    Transactions,
    Unit,
)
from relevo.storage.transactions.kinds import Kind
from relevo.storage.transactions.lending import Lender, made, own, pooled

__all__ = [
    "AbortedTransactionError",
    "AsyncUnit",
    "Kind",
    "PipelineError",
    "StateError",
    "Transactions",
    "Unit",
    "default_kind",
    "source_of",
    "transactions_for",
]


def default_kind(given: object, settings: DatabaseSettings, *, is_async: bool) -> Kind:
    """The kind for a handler whose ``tx`` is not annotated (or missing): what ``tx=`` implies, else what the database
    URL does."""
    source = source_of(given)
    match source:
        case "sessionmaker" | "async_sessionmaker":
            return kinds.ASYNC_SESSION if is_async else kinds.SESSION
        case "engine" | "async_engine":
            return kinds.ASYNC_CONNECTION if is_async else kinds.CONNECTION
        case "asyncpg_pool":
            return kinds.ASYNCPG
    if dialect_of(settings.url) == "sqlite":
        return kinds.SQLITE_ON_LOOP if is_async else kinds.SQLITE
    return kinds.ASYNC_PSYCOPG if is_async else kinds.PSYCOPG


def transactions_for(kind: Kind, given: Any, settings: DatabaseSettings) -> Transactions:
    """Transactions of ``kind`` from what the application gave as ``tx=``, or from the configured database when that is
    ``None``. Raises ``ConfigError`` when the two do not go together. Connects to nothing."""
    source = source_of(given)
    if source is None:
        return _opened(kind, settings)
    problem = ConfigError(
        f"a handler wants a {kind.name}, and Consumer(tx={type(given).__name__}) cannot give one. Annotate its tx as "
        "something that tx= makes, or leave tx= out to use the configured database"
    )
    if source in ("sessionmaker", "async_sessionmaker", "engine", "async_engine"):
        if kind.library != "sqlalchemy" or kind.is_async != source.startswith("async_"):
            raise problem
        return _on_engine(kind, given, source)
    lender = made(given) if source == "factory" else pooled(given)
    if source in ("psycopg_pool", "async_psycopg_pool") and (
        kind.library != "psycopg" or kind.is_async != source.startswith("async_")
    ):
        raise problem
    if source == "asyncpg_pool" and kind is not kinds.ASYNCPG:
        raise problem
    return _on_lender(kind, lender, problem)


def source_of(given: object) -> str | None:
    """What ``Consumer(tx=…)`` was given, told by class names; raises ``ConfigError`` for what cannot be used."""
    if given is None:
        return None
    for base in type(given).__mro__:
        found = _SOURCES.get((base.__module__.partition(".")[0], base.__qualname__))
        if found is not None:
            return found
    if hasattr(given, "session_factory"):
        raise ConfigError(
            f"Consumer(tx={type(given).__name__}) would hand every handler of a thread the same session. Pass its "
            "session_factory (the sessionmaker) instead"
        )
    if callable(given):
        return "factory"
    raise ConfigError(
        f"Consumer(tx=…) takes a sessionmaker, async_sessionmaker, Engine, AsyncEngine, psycopg_pool, asyncpg pool or "
        f"a function that returns a connection, not {type(given).__name__}"
    )


_SOURCES = {
    ("sqlalchemy", "sessionmaker"): "sessionmaker",
    ("sqlalchemy", "async_sessionmaker"): "async_sessionmaker",
    ("sqlalchemy", "Engine"): "engine",
    ("sqlalchemy", "AsyncEngine"): "async_engine",
    ("psycopg_pool", "ConnectionPool"): "psycopg_pool",
    ("psycopg_pool", "AsyncConnectionPool"): "async_psycopg_pool",
    ("asyncpg", "Pool"): "asyncpg_pool",
}


def _on_engine(kind: Kind, given: Any, source: str) -> Transactions:
    from relevo.storage.transactions.sqlalchemy import SqlalchemyTransactions

    if source.endswith("engine"):
        return SqlalchemyTransactions(given, _session_class(kind), is_async=kind.is_async, owned=False)
    engine = given.kw.get("bind")
    if engine is None or not hasattr(engine, "connect"):
        raise ConfigError("Consumer(tx=sessionmaker) needs one that is bound to an engine: sessionmaker(engine)")
    return SqlalchemyTransactions(engine, given if kind.session else None, is_async=kind.is_async, owned=False)


def _on_lender(kind: Kind, lender: Lender, problem: ConfigError) -> Transactions:
    match kind.library:
        case "psycopg":
            from relevo.storage.transactions.psycopg import PsycopgTransactions

            return PsycopgTransactions(lender, is_async=kind.is_async)
        case "asyncpg":
            from relevo.storage.transactions.asyncpg import AsyncpgTransactions

            return AsyncpgTransactions(lender)
        case "sqlite3":
            from relevo.storage.transactions.sqlite import SqliteTransactions

            return SqliteTransactions(lender, is_async=kind.is_async)
    raise problem


def _opened(kind: Kind, settings: DatabaseSettings) -> Transactions:
    sqlite = dialect_of(settings.url) == "sqlite"
    if (kind.library == "sqlite3") != sqlite and kind.library != "sqlalchemy":
        raise ConfigError(f"a handler wants a {kind.name}, and the configured database is not of that kind")
    match kind.library:
        case "psycopg":
            from relevo.storage.transactions import psycopg

            return psycopg.opened(settings, is_async=kind.is_async)
        case "asyncpg":
            from relevo.storage.transactions import asyncpg

            return asyncpg.opened(settings)
        case "sqlite3":
            from relevo.clients.sqlite import connect, sqlite_path
            from relevo.storage.transactions.sqlite import SqliteTransactions

            path = sqlite_path(settings.url).absolute()
            return SqliteTransactions(own(lambda: connect(path)), is_async=kind.is_async)
    return _own_engine(kind, settings)


def _own_engine(kind: Kind, settings: DatabaseSettings) -> Transactions:
    try:
        import sqlalchemy.ext.asyncio
        from sqlalchemy import create_engine, make_url
    except ModuleNotFoundError as error:
        if error.name != "sqlalchemy":
            raise
        raise MissingExtraError("sqlalchemy", "sqlalchemy", f"A handler with a {kind.name}") from None
    from relevo.storage.transactions.sqlalchemy import SqlalchemyTransactions

    url = make_url(settings.url)
    options: dict[str, Any] = {}
    if dialect_of(settings.url) == "sqlite":
        url = url.set(drivername="sqlite+aiosqlite" if kind.is_async else "sqlite+pysqlite")
        options["connect_args"] = {"timeout": 10}
    else:
        driver = url.drivername if kind.is_async and "asyncpg" in url.drivername else "postgresql+psycopg"
        url = url.set(drivername=driver)
        given: dict[str, Any] = {"timeout": CONNECT_S} if "asyncpg" in driver else _libpq(settings.url)
        if not settings.prepared_statements:
            given |= {"statement_cache_size": 0} if "asyncpg" in driver else {"prepare_threshold": None}
        options["connect_args"] = given
        options |= {"pool_size": 10, "max_overflow": 20}
    make: Callable[..., Any] = sqlalchemy.ext.asyncio.create_async_engine if kind.is_async else create_engine
    try:
        engine = make(url, **options)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a handler with a {kind.name} needs the package {error.name!r}: pip install {error.name}"
        ) from error
    return SqlalchemyTransactions(engine, _session_class(kind), is_async=kind.is_async, owned=True)


def _libpq(url: str) -> dict[str, Any]:
    """Bounds for a driver on libpq, but for those that the URL sets, and the client encoding."""
    scheme, _, rest = url.partition(":")
    given = f"{scheme.partition('+')[0]}:{rest}"
    return {name: value for name, value in connecting(given, ANSWER_S, CONNECT_S).items() if name in BOUNDS}


def _session_class(kind: Kind) -> Callable[..., Any] | None:
    if not kind.session:
        return None
    if kind.is_async:
        from sqlalchemy.ext.asyncio import AsyncSession

        return AsyncSession
    from sqlalchemy.orm import Session

    return Session
