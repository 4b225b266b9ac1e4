"""What a handler leaves on its connection harms no other message: in its batch, or later on the same connection.

Settings of the connection object, state of the session, results, COPYs and pipelines that are open, statements of the
driver below the transaction it was given. Its own message is handled once, or parked with words that say why.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from relevo import Backoff, Consumer, Event
from tests.support.consumers import effects, held, insert, make_effects, order, running, settled
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store, sqlite_store

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""What is left half done says so itself when it is forgotten."""

ASYNC = (AsyncSession, psycopg.AsyncConnection, asyncpg.Connection)
COUNT = 8
BAD = 3
KEPT: list[Any] = []
"""What outlives its handler: in a program a cache, a closure, a generator that is not read to its end."""

Deed = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    yield
    KEPT.clear()


def enter(manager: Any) -> Any:
    KEPT.append(manager)
    entered = manager.__enter__()
    KEPT.append(entered)
    return entered


async def aenter(manager: Any) -> Any:
    KEPT.append(manager)
    entered = await manager.__aenter__()
    KEPT.append(entered)
    return entered


def half_read(tx: Any) -> None:
    rows = tx.cursor().stream("select generate_series(1, 100000)")
    next(rows)
    KEPT.append(rows)


async def half_read_async(tx: Any) -> None:
    rows = tx.cursor().stream("select generate_series(1, 100000)")
    await anext(rows)
    KEPT.append(rows)


def half_copied(tx: Any) -> None:
    enter(tx.cursor().copy("copy effect (number) from stdin")).write("77\n")


async def half_copied_async(tx: Any) -> None:
    await (await aenter(tx.cursor().copy("copy effect (number) from stdin"))).write("77\n")


def reads_as_text(tx: Any) -> None:
    tx.adapters.register_loader("int4", TextLoader)


def reads_as_text_from_now_on(tx: Any) -> None:
    reads_as_text(tx)
    tx.execute("select 1")  # psycopg forgets that its map of adapters was changed when a cursor copies it


def below(tx: Session) -> Any:
    return tx.connection().connection.driver_connection


async def below_async(tx: AsyncSession) -> Any:
    return (await (await tx.connection()).get_raw_connection()).driver_connection


async def commits_below(tx: AsyncSession) -> None:
    await (await below_async(tx)).commit()


async def scripts_below(tx: AsyncSession) -> None:
    await (await below_async(tx)).executescript("select 1")


async def commits_and_begins_below(tx: AsyncSession) -> None:
    driver = await below_async(tx)
    await driver.execute("commit")
    await driver.execute("begin")


PSYCOPG: dict[str, Deed] = {
    "rows as dicts": lambda tx: setattr(tx, "row_factory", dict_row),
    "another cursor class": lambda tx: setattr(tx, "cursor_factory", psycopg.RawCursor),
    "a loader": reads_as_text,
    "a loader, and a statement": reads_as_text_from_now_on,
    "an open pipeline": lambda tx: enter(tx.pipeline()),
    "a result half read": half_read,
    "half a COPY": half_copied,
    "a temporary table": lambda tx: tx.execute("create temp table staging (number integer)"),
    "a cursor with hold": lambda tx: tx.execute("declare mine cursor with hold for select 1"),
    "a prepared statement": lambda tx: tx.execute("prepare mine as select 1"),
    "a session that reads only": lambda tx: tx.execute("set session characteristics as transaction read only"),
}
ASYNC_PSYCOPG: dict[str, Deed] = {
    "rows as dicts": lambda tx: setattr(tx, "row_factory", dict_row),
    "an open pipeline": lambda tx: aenter(tx.pipeline()),
    "a result half read": half_read_async,
    "half a COPY": half_copied_async,
}
ASYNCPG: dict[str, Deed] = {
    "a codec": lambda tx: tx.set_type_codec("int4", encoder=str, decoder=str, schema="pg_catalog", format="text"),
    "a temporary table": lambda tx: tx.execute("create temporary table staging (number integer)"),
}
SESSION: dict[str, Deed] = {
    "rows as dicts, below": lambda tx: setattr(below(tx), "row_factory", dict_row),
    "half a COPY, below": lambda tx: half_copied(below(tx)),
    "an open pipeline, below": lambda tx: enter(below(tx).pipeline()),
    "an open savepoint": lambda tx: KEPT.append(tx.begin_nested()),
    "a temporary table": lambda tx: tx.execute(text("create temp table staging (number integer)")),
    "a setting of the session": lambda tx: tx.execute(text("set default_transaction_read_only = on")),
}
UNFINISHED = "insert into effect (number, what) values (77, 'unread') returning number"
SQLITE: dict[str, Deed] = {
    "an INSERT half read": lambda tx: KEPT.append(tx.execute(UNFINISHED)),
    "a SELECT half read": lambda tx: KEPT.append(tx.execute("select * from sqlite_master")),
    "a temporary table": lambda tx: tx.execute("create temp table staging (number integer)"),
    "a temporary trigger": lambda tx: tx.execute(
        "create temp trigger mine before insert on main.relevo_inbox begin select raise(abort, 'no'); end"
    ),
    "another file": lambda tx: tx.execute("attach ':memory:' as other"),
    "a collation": lambda tx: tx.create_collation("BINARY", lambda *_: 1 // 0),
    "a limit": lambda tx: tx.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10),
}
SESSION_ON_SQLITE: dict[str, Deed] = {
    "an INSERT half read, below": lambda tx: KEPT.append(below(tx).execute(UNFINISHED)),
    "a SELECT half read, below": lambda tx: KEPT.append(below(tx).execute("select * from sqlite_master")),
}
ASYNC_SESSION_ON_SQLITE: dict[str, Deed] = {
    "a commit, below": commits_below,
    "a script, below": scripts_below,
    "a commit and a begin, below": commits_and_begins_below,
}
ON_POSTGRES = [
    (kind, name, deed)
    for kind, deeds in (
        *((psycopg.Connection, PSYCOPG), (psycopg.AsyncConnection, ASYNC_PSYCOPG)),
        *((asyncpg.Connection, ASYNCPG), (Session, SESSION)),
    )
    for name, deed in deeds.items()
]
ON_SQLITE = [
    (kind, name, deed)
    for kind, deeds in (
        *((sqlite3.Connection, SQLITE), (Session, SESSION_ON_SQLITE)),
        (AsyncSession, ASYNC_SESSION_ON_SQLITE),
    )
    for name, deed in deeds.items()
]


def named(value: Any) -> str:
    return "" if callable(value) and not isinstance(value, type) else getattr(value, "__name__", str(value))


async def seven(tx: Any) -> Any:
    """What the database's 7 looks like to this handler."""
    if isinstance(tx, AsyncSession):
        return (await tx.execute(text("select 7"))).fetchone()[0]  # type: ignore[index]
    if isinstance(tx, psycopg.AsyncConnection):
        return (await (await tx.execute("select 7")).fetchone())[0]  # type: ignore[index]
    return await tx.fetchval("select 7")


def declared(kind: Any, deed: Deed, way: str) -> Consumer:
    consumer = Consumer("billing", ["shop.order"], retry=Backoff(attempts=1), batch=1 if way == "alone" else None)

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        query: Any = text("select 7") if isinstance(tx, Session) else "select 7"
        assert tx.execute(query).fetchone()[0] == 7
        insert(tx, event.data.order_id)
        if event.data.order_id == BAD:
            deed(tx)

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        assert await seven(tx) == 7
        await insert(tx, event.data.order_id)
        if event.data.order_id == BAD:
            done = deed(tx)
            if hasattr(done, "__await__"):
                await done

    handler: Any = asynchronous if kind in ASYNC else sync
    handler.__annotations__["tx"] = kind
    consumer.on(OrderPlaced)(handler)
    return consumer


async def harms_nobody(store: Store, kind: Any, deed: Deed, way: str) -> None:
    make_effects(store)
    broker = FakeBroker()
    broker.append(*(order(number, f"k{number}") for number in range(COUNT)))
    async with running(declared(kind, deed, way), store, broker):
        await settled(broker)
        broker.append(*(order(number, f"k{number}") for number in range(COUNT, 2 * COUNT)))
        await settled(broker)
    done = sorted(effects(store))
    assert [number for number in done if number != BAD] == [number for number in range(2 * COUNT) if number != BAD]
    parked = [(state, str(error_type)) for state, _, error_type, _ in held(store)]
    if BAD in done:
        assert (done.count(BAD), parked) == (1, [])
    else:
        [(state, error_type)] = parked
        assert state == "parked"
        assert error_type.startswith(("relevo.errors.MisuseError", "sqlite3.", "sqlalchemy.", "psycopg."))
    assert len(store.query("select 1 from relevo_inbox")) == 2 * COUNT - len(parked)


@pytest.mark.parametrize("way", ["alone", "batch"])
@pytest.mark.parametrize(("kind", "name", "deed"), ON_POSTGRES, ids=named)
async def test_on_postgres_it_harms_nobody(pg_store: Store, kind: Any, name: str, deed: Deed, way: str) -> None:
    await harms_nobody(pg_store, kind, deed, way)


@pytest.mark.parametrize("way", ["alone", "batch"])
@pytest.mark.parametrize(("kind", "name", "deed"), ON_SQLITE, ids=named)
async def test_on_sqlite_it_harms_nobody(tmp_path: Path, kind: Any, name: str, deed: Deed, way: str) -> None:
    """Where an aiosqlite connection is committed below its session, no message of the batch is lost."""
    await harms_nobody(sqlite_store(tmp_path / "app.db"), kind, deed, way)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_lock_of_the_session_ends_with_its_handler(pg_store: Store, fails: bool) -> None:
    """``pg_advisory_lock`` and no unlock: the next message of another key takes the lock on another connection."""
    make_effects(pg_store)
    consumer = Consumer("billing", ["shop.order"], retry=Backoff(attempts=1))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
        await tx.execute("select pg_advisory_lock(4711)")
        await insert(tx, event.data.order_id)
        if fails and event.data.order_id == BAD:
            raise ValueError("before it unlocks")

    broker = FakeBroker()
    broker.append(*(order(number, f"k{number}") for number in range(COUNT)))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert sorted(effects(pg_store)) == [number for number in range(COUNT) if not (fails and number == BAD)]


async def test_a_handler_that_goes_on_behind_its_return_stops_nobody(pg_store: Store) -> None:
    """It kept its ``tx``: the connection that it opened a transaction on again is not given to another message."""
    make_effects(pg_store)
    consumer, late = Consumer("billing", ["shop.order"], batch=1), asyncio.Event()

    async def later(tx: Any) -> None:
        await late.wait()
        await tx.execute("select 1")

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
        await insert(tx, event.data.order_id)
        KEPT.append(asyncio.create_task(later(tx)))

    broker = FakeBroker()
    broker.append(order(0, "k"))
    async with running(consumer, pg_store, broker):
        await settled(broker)
        late.set()
        await KEPT[0]
        broker.append(*(order(number, "k") for number in range(1, 4)))
        await settled(broker)
    assert effects(pg_store) == [0, 1, 2, 3]
    await asyncio.gather(*KEPT)


@pytest.mark.parametrize("kind", [sqlite3.Connection, Session], ids=named)
async def test_a_handler_that_changes_the_folder_loses_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """The database's path is relative, as by default, and new connections are opened afterwards."""
    made = sqlite_store(tmp_path / "app.db")
    make_effects(made)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    consumer = Consumer("billing", ["shop.order"], retry=Backoff(attempts=1), batch=1)

    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)
        os.chdir(tmp_path / "elsewhere")
        if event.data.order_id == BAD:
            raise ValueError("and its connection is not used again")

    handle.__annotations__["tx"] = kind
    consumer.on(OrderPlaced)(handle)
    broker = FakeBroker()
    broker.append(*(order(number, f"k{number}") for number in range(COUNT)))
    async with running(consumer, Store("sqlite:///app.db"), broker):
        await settled(broker)
    assert sorted(effects(made)) == [number for number in range(COUNT) if number != BAD]
    assert list((tmp_path / "elsewhere").iterdir()) == []
