"""A relay and a consumer on SQLite wait out what the library raises: locked, full, read-only, a broken disk. They say
so, are unready meanwhile, and go on by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import Consumer, Event, Outbox, Relay
from relevo.clients import sqlite as client
from relevo.clients.sqlite import SqliteDatabase
from relevo.consumer import ConsumerRunner
from relevo.effects import EffectRequest, Registry, effect, once
from relevo.settings import BrokerSettings, RelaySettings, Settings
from relevo.storage.transactions.sqlite import SqliteUnit
from tests.support.consumers import effects, held, insert, make_effects, order
from tests.support.consumers import settings_for as consumer_settings
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually

Fault = Callable[[list[SqliteDatabase], Path, pytest.MonkeyPatch], "contextlib.AbstractContextManager[None]"]


def pragma(databases: list[SqliteDatabase], begin: str, end: str) -> Iterator[None]:
    """Set for Relevo's connections, in their own threads; the library itself refuses then."""

    def execute(text: str) -> None:
        for database in databases:

            def act(database: SqliteDatabase = database) -> None:
                if database._connection is not None:
                    database._connection.execute(text)

            database._thread.submit(act).result(10)

    execute(begin)
    yield
    execute(end)


@contextlib.contextmanager
def readonly(databases: list[SqliteDatabase], path: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from pragma(databases, "pragma query_only = on", "pragma query_only = off")


@contextlib.contextmanager
def busy(databases: list[SqliteDatabase], path: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another connection has the write lock."""
    for _ in pragma(databases, "pragma busy_timeout = 100", "pragma busy_timeout = 10000"):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("begin immediate")
            yield
            other.execute("rollback")


def raising(code: int) -> Fault:
    """Every statement of Relevo's, also in handlers' transactions, raises as the library does for ``code``, which no
    test can bring about for real."""

    @contextlib.contextmanager
    def fault(databases: list[SqliteDatabase], path: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
        on = threading.Event()
        on.set()

        def failing(usual: Callable[..., Any]) -> Callable[..., Any]:
            def execute(*arguments: Any) -> Any:
                if on.is_set():
                    error = sqlite3.OperationalError("injected")
                    error.sqlite_errorcode = code
                    raise error
                return usual(*arguments)

            return execute

        patch.setattr(SqliteDatabase, "_execute", failing(SqliteDatabase._execute))
        patch.setattr(SqliteUnit, "execute", failing(SqliteUnit.execute))
        yield
        on.clear()

    return fault


FAULTS: dict[str, Fault] = {
    "busy": busy,
    "readonly": readonly,
    "full": raising(sqlite3.SQLITE_FULL),
    "ioerr": raising(sqlite3.SQLITE_IOERR),
}


@pytest.fixture
def databases(monkeypatch: pytest.MonkeyPatch) -> list[SqliteDatabase]:
    """All that are opened, with a short time-out for the lock."""
    found: list[SqliteDatabase] = []
    connect = SqliteDatabase._connect

    def connected(database: SqliteDatabase) -> sqlite3.Connection:
        found.append(database)
        return connect(database)

    monkeypatch.setattr(SqliteDatabase, "_connect", connected)
    monkeypatch.setattr(client, "BUSY_TIMEOUT_MS", 500)
    return found


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_relay_on_sqlite(
    fault: str,
    databases: list[SqliteDatabase],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "app.db"
    store = sqlite_store(path)
    settings = Settings(
        database=store.settings,
        broker=BrokerSettings(url=f"embedded:{tmp_path}/broker.db"),
        relay=RelaySettings(lease_s=3.0, send_timeout_s=1.0, poll_max_s=0.05),
    )
    stop, relay = asyncio.Event(), Relay(settings)
    task = asyncio.create_task(relay.run(stop))
    try:
        add(store, 1)
        await eventually(lambda: store.unsettled() == 0 and relay.health().ready, what="it works", timeout_s=20)
        caplog.clear()
        with FAULTS[fault](databases, path, monkeypatch):
            await eventually(lambda: not relay.health().ready, what="it is unready", timeout_s=30)
            problems = relay.health().problems
            assert problems and relay.health().live and not task.done()
            assert [record for record in caplog.records if record.levelno >= logging.WARNING], "it says so"
        add(store, 2)
        await eventually(lambda: store.unsettled() == 0 and relay.health().ready, what="it goes on", timeout_s=30)
        assert not task.done() and relay.health().problems == {}
    finally:
        stop.set()
        await task


def add(store: Store, number: int) -> None:
    with contextlib.closing(store.connect()) as connection:
        connection.execute("begin immediate")
        Outbox().add(connection, OrderPlaced(number))
        connection.commit()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_consumer_with_effects_on_sqlite(
    fault: str,
    databases: list[SqliteDatabase],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What arrives meanwhile waits: each message is handled once, in the order of its key, none is parked, and each act
    is performed once."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "app.db"
    store = sqlite_store(path)
    make_effects(store)
    charged: list[str] = []

    @effect("charge", registry=Registry())
    def charge(request: EffectRequest) -> None:
        charged.append(request.key)

    billing = Consumer("billing", ["shop.order"])

    @billing.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: sqlite3.Connection) -> None:
        insert(tx, event.data.order_id)
        once(tx, charge, key=event.data.order_id)

    broker = FakeBroker()
    runner = ConsumerRunner(billing, consumer_settings(store, lease_s=3.0), broker=broker, effects=[charge])
    task = asyncio.create_task(runner.run())

    def done(count: int) -> bool:
        return len(effects(store)) >= count and len(charged) >= count and runner.health().ready

    try:
        broker.append(*(order(number, f"k{number % 3}") for number in range(10)))
        await eventually(lambda: done(10), what="it works", timeout_s=20)
        caplog.clear()
        with FAULTS[fault](databases, path, monkeypatch):
            broker.append(*(order(number, f"k{number % 3}") for number in range(10, 20)))
            await eventually(lambda: not runner.health().ready, what="it is unready", timeout_s=30)
            assert runner.health().problems and runner.health().live and not task.done()
            assert [record for record in caplog.records if record.levelno >= logging.WARNING], "it says so"
        broker.append(*(order(number, f"k{number % 3}") for number in range(20, 30)))
        await eventually(lambda: done(30), what="it goes on", timeout_s=40)
        assert not task.done() and held(store) == []
    finally:
        runner.stop()
        await task
    of_key = [[number for number in effects(store) if number % 3 == key] for key in range(3)]
    assert of_key == [list(range(key, 30, 3)) for key in range(3)]
    assert sorted(map(int, charged)) == list(range(30))
