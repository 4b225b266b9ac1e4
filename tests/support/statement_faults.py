"""Statements of the catalog fail, each once, in a process that works: by a SQLSTATE of the real server, by a connection
that is cut, or by an answer that does not come in time.

The statement is replaced where it is executed, so the transaction around it is real. ``Faults`` stands in the two
places that execute named statements: Relevo's own connections, and the transactions that handlers get.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from msgspec import structs

from relevo import Outbox, Relay, event
from relevo.brokers import broker_for
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
from relevo.storage.transactions import psycopg as transactions
from relevo.storage.transactions.commands import command
from tests.support.statement_ways import BYTES_MAX, TOPIC, WAYS, redrive, tidy
from tests.support.waiting import eventually, eventually_sync

if TYPE_CHECKING:
    from tests.edges.statements import Kind

STATES = ("57014", "55P03", "25006", "40001", "40P01", "53300", "53100", "08006")
FAULTS = (*STATES, "cut", "never", "late")
RAISE = "do $$ begin raise exception using errcode = '{}', message = 'injected'; end $$"
CUT = "select pg_terminate_backend(pg_backend_pid())"
LONG = "select pg_sleep(8)"
"""Longer than any bound of a round trip here."""


@event("shop.order.faulted", key="key")
@dataclass(frozen=True)
class Placed:
    key: str
    n: int
    how: str = "plain"
    filling: str = ""


@event("shop.order.uneven", key="key")
@dataclass(frozen=True)
class Uneven:
    """Most are quick, so a batch takes several; one of them takes longer than a batch may."""

    key: str
    n: int
    seconds: float


@event("shop.order.skippable", key="key")
@dataclass(frozen=True)
class Skippable:
    key: str
    n: int


FILLING = {"huge": BYTES_MAX, "letter": BYTES_MAX - 150}
"""Too large for the broker's bound where there is one, or so large that its dead letter is."""
OFTEN = {"flaky": 1, "again": 6, "elsewhere": 6, "queue": 6}
"""How often the handler fails first."""
BEHIND = {"huge": 1, "queue": 6}
"""How many follow it in its key."""

AT_ENDS = {
    *("duty.leave", "process.leave", "lanes.release", "lanes.acquire", "lanes.count", "log.load", "wal.leave"),
    *("destinations.forget", "meta.read", "meta.system_id", "meta.moved"),
    *("moving.stands", "process.live", "process.forget_dead", "process.register", "relay_held.load", "relays.living"),
    *("wal.names", "wal.position", "wal.server", "wal.slot"),
    *(
        "groups.acquire",
        "groups.bury",
        "groups.create_topics",
        "groups.join",
        "groups.leave",
        "groups.place",
        "groups.release",
    ),
}
"""Executed when a process starts or stops, and seldom else."""
BY_PAUSES = {"log.add_groups", "log.drop_groups", "log.page", "mark.horizon"}
"""Executed when a destination is paused or resumed."""

BY_BAD_ROWS = {"scheduled.due", "scheduled.move_some", "scheduled.aside"}
"""Executed when a scheduled message cannot be moved."""
AFTER = {
    "performing.unsent": ("performing.sent", "57014"),
    "performing.release": ("performing.sent", "57014"),
    "inbox.identity": ("journal.take", "08006"),
    "inbox.read_only": ("journal.take", "08006"),
    "groups.append_nothing": ("append.many", "never"),
}
"""Executed when another statement has failed, and how that fails."""
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
        self.commits_lost = 0
        """So many of the next COMMITs of handlers' transactions are executed, and their connection is lost then."""
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

        def command_then_lost(connection: Any, text: bytes) -> None:
            command(connection, text)
            if faults.commits_lost and b"commit" in text.lower():
                faults.commits_lost -= 1
                connection.pgconn.finish()
                raise psycopg.OperationalError("the connection is lost")

        patch.setattr(transactions, "command", command_then_lost)
        patch.setattr(PostgresDatabase, "_execute", _execute)
        patch.setattr(ConsumerEngine, "_catalog", faulty)


def text_of(fault: str) -> str:
    return CUT if fault == "cut" else LONG if fault in ("never", "late") else RAISE.format(fault)


@dataclass(frozen=True)
class Other:
    """A consumer beside the world's."""

    runner: ConsumerRunner
    stop: asyncio.Event
    task: asyncio.Task[None]


def _seen(event: Any) -> None:
    """A handler to which nothing matters."""


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
    tried: set[bytes] = field(default_factory=set)
    """Keys parked at a relay that were let drain once."""
    others: list[Other] = field(default_factory=list)
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
                after = timedelta(milliseconds=1) if how == "later" else None
                if how == "skip":
                    outbox.add(connection, Skippable(key, number))
                    continue
                if how in ("quick", "long"):
                    outbox.add(connection, Uneven(key, number, 0.3 if how == "long" else 0.0))
                    self.sent.setdefault(key, []).append(number)
                    continue
                outbox.add(connection, Placed(key, number, how, "x" * FILLING.get(how, 0)), after=after)
                if how in ("reject", "letter"):
                    self.rejected += 1
                elif how != "huge":
                    self.sent.setdefault(key, []).append(number)
                for _ in range(BEHIND.get(how, 0)):
                    self._number += 1
                    outbox.add(connection, Placed(key, self._number, "slow" if how == "queue" else "plain"))
                    self.sent.setdefault(key, []).append(self._number)

    def handled(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for key, number in self.query("select key, n from done order by at"):
            found.setdefault(key, []).append(number)
        return found

    def parked(self) -> int:
        """Keys at the consumer."""
        rows = self.query("select count(*) from relevo_held_key where state = 'parked' and side = 'consumer'")
        return int(rows[0][0])

    async def redriven(self) -> bool:
        """Let everything parked at the consumer drain; whether no more is parked than handlers reject."""
        await redrive(self)
        return self.parked() <= self.rejected

    def even(self) -> bool:
        """Everything sent was handled once, in order, and what was rejected is parked."""
        effects = self.query("select count(*) from relevo_effect where state not in ('done', 'unknown')")
        held = self.query("select count(*) from relevo_held_key where side = 'relay'")
        return self.handled() == self.sent and self.parked() == self.rejected and effects == held == [(0,)]

    def healthy(self) -> bool:
        assert self.relay is not None and self.runner is not None
        ready = True
        for health in (self.relay.health(), self.runner.health(), *(other.runner.health() for other in self.others)):
            ready = ready and health.live and health.ready
            self.unready |= set(health.problems)
        return ready

    async def settle(self, what: str, timeout_s: float = 30.0) -> None:
        async def settled() -> bool:
            if self.refuses:
                await tidy(self)
            return self.healthy() and self.even()

        await eventually(settled, what=what, timeout_s=timeout_s, every_s=0.05)

    @property
    def refuses(self) -> bool:
        """Whether the broker takes small messages only."""
        return "message_bytes_max" in self.settings.broker.options

    def struck_within(self, seconds: float) -> None:
        """Wait for it, in a thread."""
        with contextlib.suppress(AssertionError):
            eventually_sync(self.faults.struck.is_set, what="all have struck", timeout_s=seconds)

    async def restart(self, between: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stop all in good order, and start it again."""
        await self._stack.aclose()
        self._stack = contextlib.AsyncExitStack()
        if between is not None:
            await between()
        await self._stack.enter_async_context(running(self))

    async def another_consumer(self) -> None:
        """In the place of the one before, with a name that was never there."""
        await self._end_others()
        self._number += 1
        consumer = Consumer(f"other-{self._number}", [TOPIC])
        consumer.on(Placed)(_seen)
        consumer.on(Skippable)(_seen)
        consumer.on(Uneven)(_seen)
        runner, stop = ConsumerRunner(consumer, self.settings), asyncio.Event()
        self.others.append(Other(runner, stop, asyncio.create_task(runner.run(stop))))

    async def _end_others(self) -> None:
        others, self.others = self.others, []
        for other in others:
            assert not other.task.done(), "a process ended"
            other.stop.set()
        await asyncio.gather(*(other.task for other in others))

    async def provoke(self, faults: Mapping[str, str], *, lasting: bool = False) -> None:
        """Have the statements executed, and each fail with its fault, once or until ``disarm``."""
        self.faults.arm(dict(AFTER[name] for name in faults if name in AFTER) | dict(faults), lasting=lasting)
        for turn in range(8):
            self.traffic()
            for way in {WAYS[name] for name in self.faults.armed if name in WAYS}:
                await way(self)
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
        try:
            await self._end_others()
        finally:
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
    failures: Counter[int] = Counter()

    def perform(request: Any) -> None:
        if request.data and request.key not in world.performed:  # longer than its time-out, and it cannot be stopped
            world.performed.append(request.key)
            world.struck_within(5.0)
            return
        world.performed.append(request.key)

    act = Effect("charge", perform, None, 2.0, Backoff(base=timedelta(milliseconds=20)), True)
    retry = Backoff(attempts=12, base=timedelta(milliseconds=20), cap=timedelta(milliseconds=100))
    inline_s = 0.05 if world.settings.consumer.handler_idle_timeout_s else 0.0
    consumer = Consumer("billing", [TOPIC], retry=retry, inline_retry_s=inline_s, dead_letters=True)

    @consumer.on(Placed)
    def handle(event: Any, tx: Any) -> None:
        placed = event.data
        if placed.how in ("reject", "letter"):
            raise Reject("never")
        if failures[placed.n] < OFTEN.get(placed.how, 0):
            failures[placed.n] += 1
            if placed.how == "elsewhere" and failures[placed.n] == OFTEN["elsewhere"]:
                elsewhere = psycopg.connect(world.settings.database.url)
                threading.Thread(target=run_elsewhere, args=(elsewhere, event.id)).start()
            raise ValueError("the first time")
        if placed.how == "slow":
            time.sleep(0.3)
        tx.execute("insert into done (key, n) values (%s, %s)", (placed.key, placed.n))
        if placed.how in ("effect", "hang"):
            once(tx, act, key=str(placed.n), data=placed.how == "hang")

    @consumer.on(Uneven)
    def uneven(event: Any, tx: Any) -> None:
        time.sleep(event.data.seconds)
        tx.execute("insert into done (key, n) values (%s, %s)", (event.data.key, event.data.n))

    @consumer.on(Skippable, on_rejected="skip")
    def skip(event: Any) -> None:
        raise Reject("never")

    return consumer, act


def run_elsewhere(connection: psycopg.Connection[Any], event_id: Any) -> None:
    """Another process has the message for a moment, as soon as this one's transaction is over, and does not do it."""
    with connection, contextlib.suppress(psycopg.errors.UniqueViolation):
        connection.execute("insert into relevo_inbox (consumer, event_id) values ('billing', %s)", (event_id,))
        connection.execute("select pg_sleep(1.5)")
        connection.rollback()


def settings_of(url: str, broker: str, kind: Kind) -> Settings:
    hard = {"handler_idle_timeout_s": 30.0} if kind.hard else {}
    options = dict(kind.options) if kind.broker == "embedded" else {"lease_s": 3.0, **kind.options}
    retention = {"every_s": 0.3, "outbox_days": 1.0, "pause_s": 0.0} | dict(kind.retention)
    return Settings(
        database=DatabaseSettings(url=url),
        broker=BrokerSettings(url=broker, options=options),
        relay=RelaySettings(source=kind.source, lease_s=3.0, send_timeout_s=1.0, poll_max_s=0.1),  # type: ignore[arg-type]
        consumer=ConsumerSettings(
            **{"lease_s": 3.0, "stop_timeout_s": 10.0, "inbox_window_s": 3600.0, "redelivery_s": 60.0} | hard
        ),
        effects=EffectsSettings(grace_s=2.0, poll_s=0.05),
        retention=RetentionSettings(**retention),
    )


@contextlib.asynccontextmanager
async def world_of(postgres_url: str, tmp: Path, patch: pytest.MonkeyPatch, kind: Kind) -> AsyncIterator[World]:
    """Everything runs until the block ends; then it stops in good order."""
    name = f"relevo_faults_{secrets.token_hex(5)}"
    databases = [name, f"{name}_b"] if kind.broker == "another postgres" else [name]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for each in databases:
            admin.execute(f"create database {each}".encode())
    url, *rest = [f"{postgres_url.rsplit('/', 1)[0]}/{each}" for each in databases]
    broker = f"embedded:{tmp}/{name}.db" if kind.broker == "embedded" else (rest or [url])[0]
    settings = settings_of(url, broker, kind)
    faults = Faults()
    world = World(settings, faults)
    try:
        for each in (url, *rest):
            await asyncio.to_thread(migrate, structs.replace(settings, database=DatabaseSettings(url=each)))
        world.query("create table done (key text, n int, at bigint generated always as identity)")
        if kind.hard:
            world.query(f"alter database {name} set lock_timeout = '20s'")
        if not kind.options.get("auto_create", True):
            await broker_for(broker, kind.options).ensure_topics([TOPIC])
        faults.install(patch)
        try:
            await world.restart()
            await world.settle("it works before anything is injected")
            yield world
        finally:
            await world.close()
        if kind.source == "wal":
            world.query(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", name
            )
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            for each in databases:
                admin.execute(f"drop database if exists {each} with (force)".encode())


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
