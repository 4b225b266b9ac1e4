"""A relay that reads the write-ahead log of a PostgreSQL of the tests' own, with a publisher that the test commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest

from relevo.clients import database_for
from relevo.ops import slot as slots
from relevo.ops.migrate import migrate
from relevo.policy import Policy
from relevo.relay.engine import RelayEngine
from relevo.relay.reading import reading
from relevo.relay.single import SingleReader
from relevo.runtime.clock import SYSTEM
from relevo.settings import DatabaseSettings, RelaySettings, Settings
from relevo.signals import Wakeup
from relevo.sources.wal.source import WalSource
from relevo.storage import pausing
from tests.support.private_postgres import PrivatePostgres, binary, private_postgres
from tests.support.relays import FakePublisher, Running, Store
from tests.support.waiting import eventually_sync

SETTINGS = {"track_commit_timestamp": "on", "max_prepared_transactions": 10}
"""So that a failure can tell what was committed when (``tests/support/moves.py``)."""


@dataclass
class WalStore(Store):
    """A database with Relevo's tables, publication and slot."""

    @property
    def all_settings(self) -> Settings:
        return Settings(
            database=self.settings,
            relay=RelaySettings(source="wal", lease_s=2.0, send_timeout_s=0.4, poll_min_s=0.005, poll_max_s=0.2),
        )

    @property
    def slot(self) -> str:
        return slots.listing(self.all_settings)[0]

    def position(self) -> tuple[int, int]:
        """(LSN, ordinal) of the position row."""
        return self.query("select (commit_lsn - '0/0')::bigint, ordinal from relevo_wal_position")[0]  # type: ignore[return-value]

    def confirmed(self) -> int:
        """What the slot was told."""
        found = self.query(
            f"select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = '{self.slot}'"
        )
        return int(found[0][0])

    def end_of_wal(self) -> int:
        return int(self.query("select (pg_current_wal_insert_lsn() - '0/0')::bigint")[0][0])


@contextlib.contextmanager
def wal_database(server: PrivatePostgres) -> Iterator[str]:
    """The URL of a database of its own on ``server``; its slots and the database go with the block."""
    name = f"wal_{secrets.token_hex(4)}"
    server.query(f"create database {name}")
    try:
        yield server.url.replace("/postgres", f"/{name}")
    finally:
        server.query(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where database = %s and active_pid > 0",
            name,
        )
        for _ in range(200):
            with contextlib.suppress(Exception):
                server.query(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", name
                )
                break
        _drop(server, name)


def _drop(server: PrivatePostgres, name: str) -> None:
    """The server ends all sessions when one of them died in the middle (a walsender, say): then once more."""

    errors: list[str] = []

    def dropped() -> bool:
        try:
            server.query(f"drop database if exists {name} with (force)")
        except psycopg.OperationalError as error:
            errors.append(str(error))
            return False
        return True

    try:
        eventually_sync(dropped, what=f"{name} is dropped", every_s=0.2)
    except AssertionError as error:
        error.add_note(f"the server said {errors[-1]!r}; there are {_users(server, name)}")
        raise


def _users(server: PrivatePostgres, name: str) -> list[tuple[object, ...]]:
    """Who and what keeps a database from being dropped."""
    return server.query(
        "select pid::text, backend_type, state, wait_event, query from pg_stat_activity where datname = %s "
        "union all select gid, 'prepared', owner, null, null from pg_prepared_xacts where database = %s "
        "union all select slot_name, 'slot', active::text, active_pid::text, null from pg_replication_slots "
        "where database = %s",
        *(name, name, name),
    )


@contextlib.contextmanager
def wal_store(server: PrivatePostgres) -> Iterator[WalStore]:
    """As ``wal_database``, with Relevo's tables, publication and slot."""
    with wal_database(server) as url:
        store = WalStore(url)
        migrate(store.all_settings)
        yield store


@pytest.fixture(scope="session")
def wal_server(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivatePostgres]:
    """Of the tests' own: making a slot waits for every transaction of the server, also those of other tests.
    (``postgres_url``: so that a missing PostgreSQL skips or fails as usual.) ``RELEVO_TEST_WAL_POSTGRES=18``: the newer
    server."""
    bin = binary(os.environ.get("RELEVO_TEST_WAL_POSTGRES", "usual"))
    with private_postgres(tmp_path_factory.mktemp("wal"), bin=bin, **SETTINGS) as server:
        yield server


@pytest.fixture
def wal(wal_server: PrivatePostgres) -> Iterator[WalStore]:
    with wal_store(wal_server) as store:
        yield store


@dataclass
class WalRunning(Running):
    source: WalSource
    ownership: SingleReader
    keeper: asyncio.Task[None]
    crashed: bool = False

    async def crash(self) -> None:
        """As a kill does: nothing more is saved, settled or given back; the connection is cut."""
        self.crashed = True
        source = self.source
        keeper = source._keeper
        if keeper is not None and keeper._task is not None:
            keeper._task.cancel()
        connected = source._connected
        if connected is not None:
            source._deaf()
            connected.close()
        source._keeper = source._connected = None
        self.keeper.cancel()
        self.task.cancel()
        await asyncio.gather(self.task, self.keeper, return_exceptions=True)
        await self.database.aclose()


@contextlib.asynccontextmanager
async def reading_relay(
    store: WalStore,
    publisher: FakePublisher | None = None,
    *,
    lease_s: float = 2.0,
    batch_max: int = 100,
    policy: Policy | None = None,
) -> AsyncIterator[WalRunning]:
    """A relay with the source ``wal`` until the block ends; then a clean stop, unless it crashed or failed."""
    publisher = publisher if publisher is not None else FakePublisher()
    database = database_for(DatabaseSettings(url=store.url))
    relay_id, wake = uuid4(), Wakeup()
    settings = store.all_settings
    settings.relay.lease_s, settings.relay.send_timeout_s = lease_s, lease_s / 5
    settings.relay.batch_max = batch_max
    source, ownership = await reading(database, settings, relay_id, "test", wake=wake.set, clock=SYSTEM)
    assert isinstance(source, WalSource) and isinstance(ownership, SingleReader)
    chosen = policy or Policy()
    engine = RelayEngine(database, source, publisher, ownership, settings.relay, lambda topic: chosen, wake=wake)
    stop = asyncio.Event()
    engine.take_pauses(await database.run(pausing.load(), read_only=True))
    await ownership.tick()

    async def keep() -> None:
        while True:
            await asyncio.sleep(0.1)
            version = ownership.version
            await ownership.tick()
            engine.take_pauses(await database.run(pausing.load(), read_only=True))
            if ownership.version != version:
                engine.wake.set()

    keeper = asyncio.create_task(keep())
    task = asyncio.create_task(engine.run(stop))
    running = WalRunning(engine, publisher, database, stop, task, source, ownership, keeper)
    try:
        yield running
    finally:
        if not running.crashed:
            stop.set()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await source.aclose()
            await ownership.leave()
            await database.aclose()
            running.failure = result if isinstance(result, Exception) else None  # type: ignore[attr-defined]
