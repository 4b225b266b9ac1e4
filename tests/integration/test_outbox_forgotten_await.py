"""HARD 23: an `outbox.add()` on an async handle that nobody awaits does not lose its event in silence."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from relevo import Outbox
from relevo.errors import ForgottenAwaitError, ForgottenAwaitWarning
from relevo.testing import expect_forgotten
from tests.support.callers import POSTGRES, SQLITE, rows, sqlalchemy_url
from tests.support.events import OrderPlaced
from tests.support.schema import create_schema

pytestmark = pytest.mark.filterwarnings("always::relevo.errors.ForgottenAwaitWarning")
outbox = Outbox()
ORDER = OrderPlaced(1)


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "app.db")
    create_schema(path)
    yield path


def forget(handle: AsyncSession | AsyncConnection) -> None:
    outbox.add(handle, ORDER)  # type: ignore[unused-coroutine]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "aiosqlite"])
async def test_session_commit_refuses(driver: str, pg_database: str, lite: str) -> None:
    """AsyncSession: the commit raises with the call site, nothing of the transaction stays, and the session can be
    used again after the rollback."""
    url = lite if driver == "aiosqlite" else pg_database
    if url == pg_database:
        create_schema(url)
    engine = create_async_engine(sqlalchemy_url(url, driver))
    with expect_forgotten() as sites, pytest.warns(ForgottenAwaitWarning):
        async with AsyncSession(engine) as session:
            with pytest.raises(ForgottenAwaitError, match=r"outbox.add\(\) at .*test_outbox_forgotten_await.py:\d+"):
                async with session.begin():
                    await outbox.add(session, OrderPlaced(2, "kept?"))
                    forget(session)
            async with session.begin():
                await outbox.add(session, OrderPlaced(3))
    await engine.dispose()
    assert len(sites) == 1
    assert [row["key"] for row in rows(url)] == [b"3"]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "aiosqlite"])
async def test_connection_commit_refuses(driver: str, pg_database: str, lite: str) -> None:
    """AsyncConnection: the same; the refused work is rolled back, so that no later commit carries it."""
    url = lite if driver == "aiosqlite" else pg_database
    if url == pg_database:
        create_schema(url)
    engine = create_async_engine(sqlalchemy_url(url, driver))
    with expect_forgotten(), pytest.warns(ForgottenAwaitWarning):
        async with engine.connect() as connection:
            await outbox.add(connection, OrderPlaced(2, "kept?"))
            forget(connection)
            with pytest.raises(ForgottenAwaitError):
                await connection.commit()
            await connection.rollback()  # as after any commit that failed; SQLAlchemy insists on it
            await outbox.add(connection, OrderPlaced(3))
            await connection.commit()
    await engine.dispose()
    assert [row["key"] for row in rows(url)] == [b"3"]


async def test_rollback_and_close_clear_it(lite: str) -> None:
    """A transaction that is given up takes its forgotten adds with it: the next commit is not refused."""
    engine = create_async_engine(sqlalchemy_url(lite, "aiosqlite"))
    with expect_forgotten() as sites, pytest.warns(ForgottenAwaitWarning):
        async with AsyncSession(engine) as session:
            for give_up in (session.rollback, session.close):
                await session.execute(text("select 1"))
                forget(session)
                await give_up()
                await outbox.add(session, ORDER)
                await session.commit()
    await engine.dispose()
    assert len(sites) == 2
    assert len(rows(lite)) == 2


@pytest.mark.parametrize("kind", ["psycopg-async", "asyncpg", "asyncpg-pool", "aiosqlite"])
async def test_drivers_without_a_hook_warn(
    kind: str, pg_database: str, lite: str, caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg, asyncpg, aiosqlite: a warning and an error in the log name the line of the call; nothing was written."""
    url = lite if kind == "aiosqlite" else pg_database
    if url == pg_database:
        create_schema(url)
    opened = SQLITE[kind] if kind == "aiosqlite" else POSTGRES[kind]
    with expect_forgotten() as sites, caplog.at_level(logging.ERROR, "relevo.outbox"):
        async with opened(url) as caller:
            with pytest.warns(ForgottenAwaitWarning, match="its event was NOT written") as warned:
                forget(caller.handle)
                gc.collect()
            await caller.commit()
    assert rows(url) == []
    (site,) = sites
    assert (site.file, site.line) == (__file__, forget.__code__.co_firstlineno + 1)
    ours = [warning for warning in warned if warning.category is ForgottenAwaitWarning]
    assert [(warning.filename, warning.lineno) for warning in ours] == [(site.file, site.line)]
    assert str(site) in caplog.text


async def test_awaited_later_or_as_a_task_is_fine(lite: str) -> None:
    """gather, create_task and an await after other work write the event; nothing warns, nothing is refused."""
    engine = create_async_engine(sqlalchemy_url(lite, "aiosqlite"))
    async with AsyncSession(engine) as session, session.begin():
        later = outbox.add(session, OrderPlaced(1))
        await asyncio.create_task(outbox.add(session, OrderPlaced(2)))
        await asyncio.gather(outbox.add(session, OrderPlaced(3)))
        await later
    await engine.dispose()
    assert [row["key"] for row in rows(lite)] == [b"2", b"3", b"1"]


async def test_hooks_leave_no_session_behind(lite: str) -> None:
    """The hooks are registered once per session and do not keep it alive."""
    from relevo.storage.handles import hooks

    engine = create_engine(sqlalchemy_url(lite, "pysqlite"))
    session = Session(engine)
    for _ in range(3):
        outbox.add(session, ORDER)
        session.commit()
    assert len(list(session.dispatch.before_commit)) == 0  # nothing to be awaited here
    assert len(list(session.dispatch.after_commit)) == 1
    session.close()
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    assert len(hooks._sessions) == 0
    with engine.connect() as connection:
        outbox.add(connection, ORDER)
        connection.commit()
    gone_too = weakref.ref(connection)
    del connection
    gc.collect()
    assert gone_too() is None
    engine.dispose()


async def test_cancelled_before_it_ran_is_not_forgotten(lite: str) -> None:
    """A task that is cancelled before its first step was given up on purpose."""
    async with SQLITE["aiosqlite"](lite) as caller:
        task = asyncio.create_task(outbox.add(caller.handle, ORDER))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await caller.commit()
    assert rows(lite) == []
