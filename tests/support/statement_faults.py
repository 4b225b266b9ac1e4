"""Statements of the catalog fail, each once, in a process that works: by a SQLSTATE of the real server, by a connection
that is cut, or by an answer that does not come in time.

The statement is replaced where it is executed, so the transaction around it is real. ``Faults`` stands in the two
places that execute named statements: Relevo's own connections, and the transactions that handlers get.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relevo import Outbox, Relay, event
from relevo.catalog import Catalog
from relevo.clients.postgres import PostgresDatabase
from relevo.consumer import Consumer, ConsumerRunner, Reject
from relevo.consumer.engine import ConsumerEngine
from relevo.effects import Effect, once
from relevo.ops import pauses
from relevo.ops.migrate import migrate
from relevo.policy import Backoff
from relevo.script import Rows, Statement
from relevo.settings import (
    BrokerSettings,
    ConsumerSettings,
    DatabaseSettings,
    EffectsSettings,
    RelaySettings,
    RetentionSettings,
    Settings,
)
from relevo.storage import handles  # noqa: F401 - loaded before anything is replaced
from tests.support.waiting import eventually

STATES = ("57014", "55P03", "25006", "40001", "40P01", "53300", "53100", "08006")
FAULTS = (*STATES, "cut", "never", "late")
RAISE = "do $$ begin raise exception using errcode = '{}', message = 'injected'; end $$"
CUT = "select pg_terminate_backend(pg_backend_pid())"
LONG = "select pg_sleep(8)"
"""Longer than any bound of a round trip here."""
TOPIC = "shop.order"


@event("shop.order.faulted", key="key")
@dataclass(frozen=True)
class Placed:
    key: str
    n: int
    how: str = "plain"


AT_ENDS = {
    *("duty.leave", "process.leave", "lanes.release", "lanes.acquire", "lanes.count", "log.load", "wal.leave"),
    *("destinations.forget", "inbox.identity", "inbox.read_only", "meta.read", "meta.system_id", "meta.moved"),
    *("moving.stands", "process.live", "process.forget_dead", "process.register", "relay_held.load", "relays.living"),
    *("wal.names", "wal.position", "wal.server", "wal.slot"),
    *("groups.acquire", "groups.bury", "groups.create", "groups.create_topics", "groups.join", "groups.leave"),
    *("groups.place", "groups.release"),
}
"""Executed when a process starts or stops, and seldom else."""
BY_PAUSES = {"log.add_groups", "log.drop_groups", "log.page", "mark.horizon"}
"""Executed when a destination is paused or resumed."""

BY_BAD_ROWS = {"scheduled.due", "scheduled.move_some", "scheduled.aside"}
"""Executed when a scheduled message cannot be moved."""
AFTER = {"performing.unsent": "performing.sent", "performing.release": "performing.sent"}
"""Executed when another statement has failed."""
BAD_ROW = (
    "insert into relevo_scheduled (due_at, event_id, bucket, topic, type)"
    " values (clock_timestamp(), gen_random_uuid(), 5000, 't', 'a.b')"
)


class Texts(dict[str, str]):
    """The texts of a ``PostgresDatabase``, of which the next one asked for is another."""

    instead: str | None = None

    def get(self, name: str, default: Any = None) -> Any:
        text, self.instead = self.instead, None
        return super().get(name, default) if text is None else text


class Faults:
    """``arm`` some: each strikes at its statement's next execution, once, or at every one until ``disarm``. ``seen``:
    every statement executed."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.armed: dict[str, str] = {}
        self.lasting: dict[str, str] = {}
        self.struck = asyncio.Event()
        """All have struck."""

    def arm(self, faults: Mapping[str, str], *, lasting: bool = False) -> None:
        self.struck.clear()
        self.armed = dict(faults)
        self.lasting = dict(faults) if lasting else {}

    def disarm(self) -> None:
        self.armed, self.lasting = {}, {}

    def take(self, name: str, told: Callable[[Callable[[], object]], object] = lambda call: call()) -> str | None:
        self.seen[name] += 1
        fault = self.armed.pop(name, None)
        if fault is not None and not self.armed:
            told(self.struck.set)
        return fault or self.lasting.get(name)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """In the texts of the two places that execute named statements, so that the product meets the server's own
        error."""
        usual, faults, loop = PostgresDatabase._execute, self, asyncio.get_running_loop()

        def _execute(database: PostgresDatabase, connection: Any, *more: Any) -> Any:
            execute = usual(database, connection, *more)
            if not isinstance(database._texts, Texts):
                database._texts = Texts(database._texts)
            texts = database._texts

            async def strike(statement: Statement) -> Rows:
                fault = faults.take(statement.name)
                if fault is None:
                    return await execute(statement)  # type: ignore[no-any-return]
                if fault == "late":
                    await execute(statement)
                texts.instead = text_of(fault)  # asked for before anything is waited for
                await execute(statement)
                raise AssertionError(f"{fault} at {statement.name} did not strike")

            return strike

        class Faulty(Catalog):
            def text(self, name: str) -> str:
                fault = faults.take(name, loop.call_soon_threadsafe)
                return super().text(name) if fault is None else text_of(fault)

        catalog = ConsumerEngine._catalog

        def faulty(engine: ConsumerEngine) -> Catalog:
            real = catalog(engine)
            return Faulty(real.dialect, real.schema, real.prefix)

        patch.setattr(PostgresDatabase, "_execute", _execute)
        patch.setattr(ConsumerEngine, "_catalog", faulty)


def text_of(fault: str) -> str:
    return CUT if fault == "cut" else LONG if fault in ("never", "late") else RAISE.format(fault)


@dataclass
class World:
    """A relay, a consumer and the effects of one database, with traffic that can be counted."""

    settings: Settings
    faults: Faults
    sent: dict[str, list[int]] = field(default_factory=dict)
    rejected: int = 0
    performed: list[str] = field(default_factory=list)
    relay: Relay | None = None
    runner: ConsumerRunner | None = None
    unready: set[str] = field(default_factory=set)
    _number: int = 0
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def query(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.settings.database.url, autocommit=True) as connection:
            cursor = connection.execute(sql, params or None)
            return cursor.fetchall() if cursor.description else []

    def traffic(self, *hows: str) -> None:
        """One message of each kind, each with a key of its own and one after it of that key."""
        with psycopg.connect(self.settings.database.url) as connection:
            outbox = Outbox()
            for how in hows or ("plain", "plain", "flaky", "reject", "effect", "later"):
                self._number += 1
                number = self._number
                key = f"{how}-{number % 3 if how in ('plain', 'effect') else number}"
                if how == "later":
                    outbox.add(connection, Placed(key, number, how), after=timedelta(milliseconds=1))
                else:
                    outbox.add(connection, Placed(key, number, how))
                if how == "reject":
                    self.rejected += 1
                else:
                    self.sent.setdefault(key, []).append(number)

    def handled(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for key, number in self.query("select key, n from done order by at"):
            found.setdefault(key, []).append(number)
        return found

    def even(self) -> bool:
        """Everything sent was handled once, in order, and what was rejected is parked."""
        parked = self.query("select count(*) from relevo_held_key where state = 'parked' and side = 'consumer'")
        effects = self.query("select count(*) from relevo_effect where state not in ('done', 'unknown')")
        return self.handled() == self.sent and parked == [(self.rejected,)] and effects == [(0,)]

    def healthy(self) -> bool:
        assert self.relay is not None and self.runner is not None
        ready = True
        for health in (self.relay.health(), self.runner.health()):
            ready = ready and health.live and health.ready
            self.unready |= set(health.problems)
        return ready

    async def settle(self, what: str, timeout_s: float = 30.0) -> None:
        await eventually(lambda: self.healthy() and self.even(), what=what, timeout_s=timeout_s, every_s=0.05)

    async def restart(self) -> None:
        """Stop all in good order, and start it again."""
        await self._stack.aclose()
        self._stack = contextlib.AsyncExitStack()
        await self._stack.enter_async_context(running(self))

    async def provoke(self, faults: Mapping[str, str], *, lasting: bool = False) -> None:
        """Have the statements executed, and each fail with its fault, once or until ``disarm``."""
        self.faults.arm({AFTER[name]: "57014" for name in faults if name in AFTER} | dict(faults), lasting=lasting)
        for turn in range(8):
            self.traffic()
            if self.faults.armed.keys() & AT_ENDS:
                await self.restart()
            elif self.faults.armed.keys() & BY_PAUSES or turn == 4:
                await self.paused("destination", TOPIC)
            elif self.faults.armed.keys() & BY_BAD_ROWS:
                self.query(BAD_ROW)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.faults.struck.wait(), 1.5)
                return
        raise AssertionError(f"{', '.join(self.faults.armed)}: not executed")

    async def close(self) -> None:
        await self._stack.aclose()

    async def paused(self, *what: Any, **more: Any) -> None:
        """Pause it, send some, and resume it."""
        await self.pause("pause", *what, **more)
        self.traffic("plain", "plain", "plain")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.faults.struck.wait(), 2.0)
        await self.pause("resume", *what, **more)

    async def pause(self, act: Any, *what: Any, **more: Any) -> None:
        from relevo.clients import database_for

        database = database_for(self.settings.database)
        try:
            await pauses.change(database, pauses.target(*what, **more), act=act, who="t", why="t")
        finally:
            await database.aclose()


def consumer_of(world: World) -> tuple[Consumer, Effect]:
    failed: set[int] = set()

    def perform(request: Any) -> None:
        world.performed.append(request.key)

    act = Effect("charge", perform, None, 2.0, Backoff(base=timedelta(milliseconds=20)), True)
    retry = Backoff(attempts=12, base=timedelta(milliseconds=20), cap=timedelta(milliseconds=100))
    consumer = Consumer("billing", [TOPIC], retry=retry, inline_retry_s=0.0, dead_letters=True)

    @consumer.on(Placed)
    def handle(event: Any, tx: Any) -> None:
        placed = event.data
        if placed.how == "reject":
            raise Reject("never")
        if placed.how == "flaky" and placed.n not in failed:
            failed.add(placed.n)
            raise ValueError("the first time")
        tx.execute("insert into done (key, n) values (%s, %s)", (placed.key, placed.n))
        if placed.how == "effect":
            once(tx, act, key=str(placed.n), data={})

    return consumer, act


def settings_of(url: str, broker: str, source: str, **more: Any) -> Settings:
    return Settings(
        database=DatabaseSettings(url=url),
        broker=BrokerSettings(url=broker, options=more.pop("options", {})),
        relay=RelaySettings(source=source, lease_s=3.0, send_timeout_s=1.0, poll_max_s=0.1),  # type: ignore[arg-type]
        consumer=ConsumerSettings(lease_s=3.0, stop_timeout_s=10.0, inbox_window_s=3600.0, redelivery_s=60.0),
        effects=EffectsSettings(grace_s=2.0, poll_s=0.05),
        retention=RetentionSettings(**{"every_s": 0.3, "outbox_days": 1.0, "pause_s": 0.0} | more),
    )


@contextlib.asynccontextmanager
async def world_of(
    postgres_url: str, tmp: Path, patch: pytest.MonkeyPatch, source: str, broker: str = "embedded", **more: Any
) -> AsyncIterator[World]:
    """Everything runs until the block ends; then it stops in good order."""
    name = f"relevo_faults_{secrets.token_hex(5)}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create database {name}".encode())
    url = f"{postgres_url.rsplit('/', 1)[0]}/{name}"
    given = f"embedded:{tmp}/{name}.db" if broker == "embedded" else url
    settings = settings_of(url, given, source, **more)
    faults = Faults()
    world = World(settings, faults)
    try:
        await asyncio.to_thread(migrate, settings)
        world.query("create table done (key text, n int, at bigint generated always as identity)")
        faults.install(patch)
        try:
            await world.restart()
            await world.settle("it works before anything is injected")
            yield world
        finally:
            await world.close()
        if source == "wal":
            world.query(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", name
            )
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(f"drop database if exists {name} with (force)".encode())


@contextlib.asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    consumer, act = consumer_of(world)
    stop, ready = asyncio.Event(), asyncio.Event()
    world.relay, world.runner = Relay(world.settings), ConsumerRunner(consumer, world.settings, effects=[act])
    tasks = [asyncio.create_task(world.relay.run(stop)), asyncio.create_task(world.runner.run(stop, ready.set))]
    try:
        await eventually(lambda: ready.is_set() or any(task.done() for task in tasks), what="all run", timeout_s=40)
        yield
        assert not any(task.done() for task in tasks), "a process ended"
    finally:
        stop.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [None, None], done
