"""Wake-ups after the caller's commit, and `captured()`."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from relevo import Outbox, signals
from relevo.message import Message
from relevo.testing import captured
from tests.support.callers import SQLITE, rows, settle, sqlalchemy_url
from tests.support.events import ChargeCard, OrderPlaced
from tests.support.schema import create_schema

outbox = Outbox()


@pytest.fixture
def lite(tmp_path: Path) -> str:
    path = str(tmp_path / "app.db")
    create_schema(path)
    return path


@pytest.mark.parametrize("kind", ["sqlalchemy-session", "sqlalchemy-async-session", "sqlalchemy-connection"])
async def test_the_hint_comes_with_the_commit(kind: str, lite: str) -> None:
    """SQLAlchemy: no hint before the commit, none for a rollback; one for the commit; none for an empty commit."""
    with signals.subscribe() as wakeup:
        async with SQLITE[kind](lite) as caller:
            await settle(outbox.add(caller.handle, OrderPlaced(1)))
            await caller.rollback()
            assert not await wakeup.wait(0)
            await settle(outbox.add(caller.handle, OrderPlaced(2)))
            await settle(outbox.add(caller.handle, OrderPlaced(3)))
            assert not await wakeup.wait(0)
            await caller.commit()
            assert await wakeup.wait(0)
            await caller.commit()
            assert not await wakeup.wait(0)


def test_a_savepoint_is_no_commit(lite: str) -> None:
    """A released savepoint gives no hint; the commit around it does."""
    engine = create_engine(sqlalchemy_url(lite, "pysqlite"))
    with signals.subscribe() as wakeup, Session(engine) as session:
        with session.begin():
            with session.begin_nested():
                outbox.add(session, OrderPlaced(1))
            assert not wakeup.is_set
        assert wakeup.is_set
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
async def test_without_a_hook_the_hint_comes_with_the_insert(kind: str, lite: str) -> None:
    """Drivers without a hook hint early; polling finds the row."""
    with signals.subscribe() as wakeup:
        async with SQLITE[kind](lite) as caller:
            await settle(outbox.add(caller.handle, OrderPlaced(1)))
            assert await wakeup.wait(0)


async def test_captured_sees_and_writes(lite: str) -> None:
    """By default what is captured is written as well: data and message side by side, in order, from any outbox."""
    with captured() as added:
        async with SQLITE["sqlite3"](lite) as caller:
            event_id = outbox.add(caller.handle, OrderPlaced(1))
            Outbox().add_many(caller.handle, [ChargeCard(2), OrderPlaced(3)])
            outbox.add_message(caller.handle, added[0].message)
            await caller.commit()
    assert [each.data for each in added] == [OrderPlaced(1), ChargeCard(2), OrderPlaced(3), None]
    assert isinstance(added[0].message, Message)
    assert added[0].message.event_id == event_id
    assert added[1].message.kind == "command"
    assert len(rows(lite)) == 4
    async with SQLITE["sqlite3"](lite) as caller:
        outbox.add(caller.handle, OrderPlaced(9))
    assert len(added) == 4  # the listening ended with the `with`


async def test_captured_without_writing() -> None:
    """write=False: sessions without any database will do, sync and async; data is still checked."""
    from relevo.errors import RefusedError

    with captured(write=False) as added:
        event_id = outbox.add(Session(), OrderPlaced(1))
        assert await outbox.add(AsyncSession(), OrderPlaced(2)) == added[1].message.event_id
        with pytest.raises(RefusedError):
            outbox.add(Session(), OrderPlaced(3, "\0"))
    assert [each.message.key for each in added] == [b"1", b"2"]
    assert added[0].message.event_id == event_id


async def test_inside_run_sync(lite: str) -> None:
    """The sync session inside `AsyncSession.run_sync` is a sync handle."""
    engine = create_async_engine(sqlalchemy_url(lite, "aiosqlite"))
    async with AsyncSession(engine) as session, session.begin():
        await session.run_sync(lambda sync: outbox.add(sync, OrderPlaced(1)))
    await engine.dispose()
    assert len(rows(lite)) == 1
