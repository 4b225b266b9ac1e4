"""Every kind of session and connection an application may hand to an outbox, behind one face for tests."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

COLUMNS = (
    "seq, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version, "
    "payload, content_type, headers, created_at"
)


@dataclass
class Caller:
    """``handle`` goes to the outbox; ``commit`` and ``rollback`` are what the application calls."""

    handle: Any
    _commit: Callable[[], Any]
    _rollback: Callable[[], Any]

    async def commit(self) -> None:
        await settle(self._commit())

    async def rollback(self) -> None:
        await settle(self._rollback())


async def settle(value: Any) -> Any:
    """Await what is awaitable."""
    return await value if inspect.isawaitable(value) else value


Open = Callable[[str], AbstractAsyncContextManager[Caller]]


def sqlalchemy_url(url: str, driver: str) -> str:
    if url.startswith("postgresql:"):
        return url.replace("postgresql:", f"postgresql+{driver}:", 1)
    return f"sqlite+{driver}:///{url}"


def _sync(kind: str, driver: str) -> Open:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session, scoped_session, sessionmaker

        engine = create_engine(sqlalchemy_url(url, driver))
        try:
            match kind:
                case "Connection":
                    handle: Any = engine.connect()
                case "scoped_session":
                    handle = scoped_session(sessionmaker(engine))
                case _:
                    handle = Session(engine)
            try:
                yield Caller(handle, handle.commit, handle.rollback)
            finally:
                handle.close()
        finally:
            engine.dispose()

    return opened


def _async(kind: str, driver: str) -> Open:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        from asyncio import current_task

        from sqlalchemy.ext.asyncio import (
            AsyncSession,
            async_scoped_session,
            async_sessionmaker,
            create_async_engine,
        )

        engine = create_async_engine(sqlalchemy_url(url, driver))
        try:
            match kind:
                case "AsyncConnection":
                    handle: Any = await engine.connect()
                case "async_scoped_session":
                    handle = async_scoped_session(async_sessionmaker(engine), current_task)
                case _:
                    handle = AsyncSession(engine)
            try:
                yield Caller(handle, handle.commit, handle.rollback)
            finally:
                await handle.close()
        finally:
            await engine.dispose()

    return opened


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncIterator[Caller]:
    import psycopg

    connection = psycopg.connect(url)
    try:
        yield Caller(connection, connection.commit, connection.rollback)
    finally:
        connection.close()


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Caller]:
    import psycopg

    connection = await psycopg.AsyncConnection.connect(url)
    try:
        yield Caller(connection, connection.commit, connection.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_plain(url: str) -> AsyncIterator[Caller]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, transaction.commit, transaction.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(url: str) -> AsyncIterator[Caller]:
    import asyncpg

    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, transaction.commit, transaction.rollback)


@asynccontextmanager
async def sqlite_sync(url: str) -> AsyncIterator[Caller]:
    connection = sqlite3.connect(url)
    try:
        yield Caller(connection, connection.commit, connection.rollback)
    finally:
        connection.close()


@asynccontextmanager
async def sqlite_async(url: str) -> AsyncIterator[Caller]:
    import aiosqlite

    async with aiosqlite.connect(url) as connection:
        yield Caller(connection, connection.commit, connection.rollback)


POSTGRES: dict[str, Open] = {
    "sqlalchemy-session": _sync("Session", "psycopg"),
    "sqlalchemy-scoped-session": _sync("scoped_session", "psycopg"),
    "sqlalchemy-connection": _sync("Connection", "psycopg"),
    "sqlalchemy-async-session-psycopg": _async("AsyncSession", "psycopg"),
    "sqlalchemy-async-session-asyncpg": _async("AsyncSession", "asyncpg"),
    "sqlalchemy-async-scoped-session-asyncpg": _async("async_scoped_session", "asyncpg"),
    "sqlalchemy-async-connection-psycopg": _async("AsyncConnection", "psycopg"),
    "sqlalchemy-async-connection-asyncpg": _async("AsyncConnection", "asyncpg"),
    "psycopg": psycopg_sync,
    "psycopg-async": psycopg_async,
    "asyncpg": asyncpg_plain,
    "asyncpg-pool": asyncpg_pooled,
}
SQLITE: dict[str, Open] = {
    "sqlalchemy-session": _sync("Session", "pysqlite"),
    "sqlalchemy-scoped-session": _sync("scoped_session", "pysqlite"),
    "sqlalchemy-connection": _sync("Connection", "pysqlite"),
    "sqlalchemy-async-session": _async("AsyncSession", "aiosqlite"),
    "sqlalchemy-async-scoped-session": _async("async_scoped_session", "aiosqlite"),
    "sqlalchemy-async-connection": _async("AsyncConnection", "aiosqlite"),
    "sqlite3": sqlite_sync,
    "aiosqlite": sqlite_async,
}


def rows(url: str, table: str = "relevo_outbox", columns: str = COLUMNS) -> list[dict[str, Any]]:
    """The committed rows of the outbox in `seq` order, read over a connection of its own."""
    names = [name.strip() for name in columns.split(",")]
    query = f"select {columns} from {table} order by seq"
    if url.startswith("postgresql:"):
        import psycopg

        with psycopg.connect(url) as connection:
            return [dict(zip(names, row, strict=True)) for row in connection.execute(query.encode()).fetchall()]
    connection = sqlite3.connect(url)
    try:
        return [dict(zip(names, row, strict=True)) for row in connection.execute(query).fetchall()]
    finally:
        connection.close()
