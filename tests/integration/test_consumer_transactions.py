"""Every kind of transaction a handler can ask for: effects commit with the inbox row, misuse leaves nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from relevo import Backoff, Consumer, Event, Outbox
from relevo.clients.sqlite import sqlite_path
from relevo.errors import ConfigError
from tests.support.consumers import (
    effects,
    held,
    inbox,
    insert,
    journal,
    make_effects,
    order,
    running,
    settled,
)
from tests.support.events import ChargeCard, OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store, postgres_store, sqlite_store

outbox = Outbox()


class Base(DeclarativeBase): ...


class Reservation(Base):
    __tablename__ = "reservation"
    order_id: Mapped[int] = mapped_column(primary_key=True)


Handle = Callable[..., Any]

POSTGRES = [Session, Connection, AsyncSession, AsyncConnection, psycopg.Connection, psycopg.AsyncConnection]
SQLITE = [Session, Connection, AsyncSession, AsyncConnection, sqlite3.Connection]
KINDS = [
    *(("postgresql", kind) for kind in [*POSTGRES, asyncpg.Connection]),
    ("postgresql", None),
    ("postgresql", "async"),
    *(("sqlite", kind) for kind in SQLITE),
    ("sqlite", "async sqlite3"),
    ("sqlite", None),
    ("sqlite", "async"),
]
ASYNC = (AsyncSession, AsyncConnection, psycopg.AsyncConnection, asyncpg.Connection, "async", "async sqlite3")


@pytest.fixture(
    params=KINDS,
    ids=lambda pair: f"{pair[0]}-{getattr(pair[1], '__module__', '')}-{getattr(pair[1], '__name__', pair[1])}",
)
def case(request: pytest.FixtureRequest, tmp_path: Any) -> tuple[Store, Any]:
    dialect, kind = request.param
    if dialect == "sqlite":
        store = sqlite_store(tmp_path / "app.db")
    else:
        store = postgres_store(request.getfixturevalue("pg_database"))
    make_effects(store)
    return store, kind


def handler_of(kind: Any, sync: Handle, asynchronous: Handle) -> Handle:
    """``sync`` or ``asynchronous``, with ``tx`` annotated as ``kind``."""
    chosen = asynchronous if kind in ASYNC else sync
    if kind == "async sqlite3":
        chosen.__annotations__["tx"] = sqlite3.Connection
    elif kind is not None and kind != "async":
        chosen.__annotations__["tx"] = kind
    else:
        chosen.__annotations__.pop("tx", None)
    return chosen


async def run_one(store: Store, handler: Handle, *messages: Any, tx: Any = None) -> None:
    consumer, broker = Consumer("billing", ["shop.order"], tx=tx, retry=Backoff(attempts=1)), FakeBroker()
    consumer.on(OrderPlaced)(handler)
    broker.append(*messages)
    async with running(consumer, store, broker):
        await settled(broker)


async def test_effect_outbox_and_inbox_commit_together(case: tuple[Store, Any]) -> None:
    """Consume and emit in one transaction, for every kind of tx; the second message fails after both writes, and
    neither of them remains."""
    store, kind = case

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)
        outbox.add(tx, ChargeCard(event.data.order_id))
        if event.data.order_id == 2:
            raise RuntimeError("after both writes")

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        done = insert(tx, event.data.order_id)
        if hasattr(done, "__await__"):
            await done
        added = outbox.add(tx, ChargeCard(event.data.order_id))
        if hasattr(added, "__await__"):
            await added
        if event.data.order_id == 2:
            raise RuntimeError("after both writes")

    good, bad = order(1, "a"), order(2, "b")
    await run_one(store, handler_of(kind, sync, asynchronous), good, bad)
    assert effects(store) == [1]
    assert list(inbox(store)) == [good.event_id]
    [(key, headers)] = store.query("select key, headers from relevo_outbox")
    assert bytes(key) == b"1"
    assert str(good.event_id) in str(headers)  # causation: carried without being asked
    assert [row[0] for row in held(store)] == ["parked"]
    assert journal(store) == []


async def test_a_handler_that_commits_is_an_error_and_leaves_nothing(case: tuple[Store, Any]) -> None:
    """commit() inside a handler: the message is parked with that reason, and neither effect nor inbox row is there."""
    store, kind = case
    if kind is asyncpg.Connection:
        pytest.skip("asyncpg's connections have no commit()")

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)
        tx.commit()

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        done = insert(tx, event.data.order_id)
        if hasattr(done, "__await__"):
            await done
        committed = tx.commit()
        if hasattr(committed, "__await__"):
            await committed

    await run_one(store, handler_of(kind, sync, asynchronous), order(1))
    assert effects(store) == []
    assert inbox(store) == {}
    [(state, reason, error_type, _)] = held(store)
    assert state == "parked"
    assert "relevo.errors.MisuseError" in str(error_type)
    assert "savepoint" in reason


async def test_a_handler_that_rolls_back_is_an_error_and_leaves_nothing(case: tuple[Store, Any]) -> None:
    """rollback(), then more work: it must not be committed without the inbox row, which went with the rollback."""
    store, kind = case
    if kind is asyncpg.Connection:
        pytest.skip("asyncpg's connections have no rollback()")

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        tx.rollback()
        insert(tx, event.data.order_id)

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        done = tx.rollback()
        if hasattr(done, "__await__"):
            await done
        inserted = insert(tx, event.data.order_id)
        if hasattr(inserted, "__await__"):
            await inserted

    await run_one(store, handler_of(kind, sync, asynchronous), order(1), order(2, "other"))
    assert effects(store) == []
    assert inbox(store) == {}
    assert [row[0] for row in held(store)] == ["parked", "parked"]
    assert all("relevo.errors.MisuseError" in str(row[2]) for row in held(store))


async def test_a_database_error_the_handler_swallowed_is_not_taken_for_success(case: tuple[Store, Any]) -> None:
    """PostgreSQL answers COMMIT of an aborted transaction with ROLLBACK and no error. The message must not count as
    handled then. On SQLite a failed statement aborts nothing, and the message is handled."""
    store, kind = case

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)
        with suppress(psycopg.Error, sqlite3.Error, DBAPIError):
            tx.execute(
                text("select nothing from nowhere") if "sqlalchemy" in type(tx).__module__ else "select x from nowhere"
            )

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        done = insert(tx, event.data.order_id)
        if hasattr(done, "__await__"):
            await done
        with suppress(psycopg.Error, sqlite3.Error, DBAPIError, asyncpg.PostgresError):
            asked = tx.execute(
                text("select nothing from nowhere") if "sqlalchemy" in type(tx).__module__ else "select x from nowhere"
            )
            if hasattr(asked, "__await__"):
                await asked

    await run_one(store, handler_of(kind, sync, asynchronous), order(1))
    if store.is_postgres:
        assert effects(store) == []
        assert inbox(store) == {}
        assert [row[0] for row in held(store)] == ["parked"]
    else:
        assert effects(store) == [1]
        assert held(store) == []


@pytest.fixture(params=["sessionmaker", "async_sessionmaker", "Engine", "AsyncEngine", "factory"])
async def given(request: pytest.FixtureRequest, store: Store) -> AsyncIterator[tuple[str, Any]]:
    url = store.url.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url)
    async_engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))

    def factory() -> Any:
        if store.is_postgres:
            return psycopg.connect(store.url, autocommit=True)
        return sqlite3.connect(sqlite_path(store.url), check_same_thread=False)

    yield (
        request.param,
        {
            "sessionmaker": sessionmaker(engine),
            "async_sessionmaker": async_sessionmaker(async_engine),
            "Engine": engine,
            "AsyncEngine": async_engine,
            "factory": factory,
        }[request.param],
    )
    engine.dispose()
    await async_engine.dispose()


async def test_transactions_come_from_what_the_application_gives(store: Store, given: tuple[str, Any]) -> None:
    """Consumer(tx=…): sessionmaker, engine and their asynchronous forms, and a connection factory; the un-annotated tx
    is what it makes."""
    make_effects(store)
    name, tx = given
    seen: list[str] = []

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        seen.append(type(tx).__name__)
        insert(tx, event.data.order_id)

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        seen.append(type(tx).__name__)
        await insert(tx, event.data.order_id)

    await run_one(store, asynchronous if "sync" in name.lower() else sync, order(1), order(2), tx=tx)
    assert effects(store) == [1, 2]
    assert set(seen) == {
        {"sessionmaker": "Session", "async_sessionmaker": "AsyncSession", "Engine": "Connection"}.get(
            name, "AsyncConnection" if name == "AsyncEngine" else "Connection"
        )
    }


async def test_tx_of_another_database_is_refused(store: Store, tmp_path: Any) -> None:
    """Inbox and effects would not commit together: refused before the first message."""
    other = sqlite_store(tmp_path / "other.db")
    consumer = Consumer("billing", ["shop.order"], tx=create_engine(other.url))

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Connection) -> None: ...

    other.do("update relevo_meta set created_at = created_at - 1000")
    with pytest.raises(ConfigError, match="another database"):
        async with running(consumer, store, FakeBroker()):
            pass


async def test_pending_objects_of_a_session_are_flushed(store: Store) -> None:
    """What the handler only added to its session is sent before Relevo commits; a constraint it breaks is its failure,
    named as such."""
    store.do("create table reservation (order_id integer primary key)")
    make_effects(store)

    def reserve(event: Event[OrderPlaced], tx: Session) -> None:
        tx.add(Reservation(order_id=event.data.order_id % 10))

    await run_one(store, reserve, order(1, "a"), order(11, "b"), order(2, "c"))
    assert store.query("select order_id from reservation order by 1") == [(1,), (2,)]
    [(state, _, error_type, _)] = held(store)
    assert state == "parked"
    assert "IntegrityError" in str(error_type)
