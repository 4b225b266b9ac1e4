"""A relay with a publisher that the test commands, on a real database. The publisher is a fake: it proves the relay's
code, never a broker."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from relevo.brokers.refusals import BEHIND, Refusals
from relevo.clients import database_for
from relevo.clients.sqlite import sqlite_path
from relevo.errors import UnreachableError
from relevo.ids import bucket_of, uuid7
from relevo.message import Message
from relevo.outcome import Accepted, PublishOutcome
from relevo.policy import Policy
from relevo.ports.broker import BrokerCapabilities
from relevo.ports.database import Database
from relevo.ports.source import Source
from relevo.relay.engine import RelayEngine
from relevo.relay.ownership import Ownership
from relevo.settings import DatabaseSettings, RelaySettings, Settings
from relevo.sources.mark.source import MarkSource
from relevo.storage.pausing import Pauses
from tests.support.schema import create_schema


@dataclass
class FakePublisher:
    """Prefix-safe, if it says so: after an outcome other than accepted, nothing later of that key is accepted."""

    answer: Callable[[Message], PublishOutcome | None] = lambda message: None
    log: list[Message] = field(default_factory=list)
    available: bool = True
    gate: asyncio.Event | None = None
    calls: int = 0
    prefix_safe: bool = True
    _refusals: Refusals = field(default_factory=Refusals)

    @property
    def capabilities(self) -> BrokerCapabilities:
        return BrokerCapabilities(
            prefix_safe=self.prefix_safe,
            ordered_by_key=True,
            keeps_history=False,
            settles_each=False,
            message_bytes_max=None,
            across_machines=True,
        )

    async def publish(self, messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
        number = self._refusals.begin()
        try:
            return await self._publish(number, messages)
        finally:
            self._refusals.end(number)

    async def _publish(self, number: int, messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        outcomes: dict[int, PublishOutcome] = {}
        for index, message in enumerate(messages):
            name = (message.topic, message.key or b"")
            closed = message.key is not None and self._refusals.closed(number, name)
            outcome = BEHIND if closed else self.answer(message)
            if outcome is None:
                self.log.append(message)
                continue
            outcomes[index] = outcome
            if message.key is not None and self.prefix_safe:
                self._refusals.refuse(number, name)
        return outcomes

    async def probe(self, topic: str) -> PublishOutcome:
        from relevo.outcome import Unavailable

        return Accepted() if self.available else Unavailable("still away")

    async def aclose(self) -> None: ...

    def payloads(self, key: bytes | None = None) -> list[int]:
        return [int(message.payload or b"0") for message in self.log if key is None or message.key == key]


@dataclass
class Store:
    """One database with Relevo's tables, and raw access to it for the test."""

    url: str

    @property
    def settings(self) -> DatabaseSettings:
        return DatabaseSettings(url=self.url)

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    def connect(self) -> Any:
        """A driver connection in manual transaction mode."""
        if self.is_postgres:
            import psycopg

            return psycopg.connect(self.url)
        return sqlite3.connect(sqlite_path(self.url), timeout=20)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self.connect()) as connection:
            return [tuple(row) for row in connection.execute(sql).fetchall()]

    def do(self, sql: str) -> None:
        with contextlib.closing(self.connect()) as connection:
            connection.execute(sql)
            connection.commit()

    def append(self, connection: Any, key: bytes | None, payload: int, topic: str = "shop.order") -> UUID:
        """One row on the caller's connection, in its transaction."""
        event_id = uuid7()
        mark = "%s" if self.is_postgres else "?"
        values = (
            event_id if self.is_postgres else str(event_id),
            bucket_of(key, event_id),
            topic,
            key,
            "shop.order.placed",
            str(payload).encode(),
        )
        connection.execute(
            f"insert into relevo_outbox (event_id, bucket, topic, key, type, payload) values ({', '.join([mark] * 6)})",
            values,
        )
        return event_id

    def fill(self, count: int, keys: int = 10, topic: str = "shop.order", start: int = 0) -> None:
        """``count`` committed rows; payloads count up from ``start``, key = payload modulo ``keys``."""
        with contextlib.closing(self.connect()) as connection:
            for number in range(start, start + count):
                self.append(connection, b"k%d" % (number % keys), number, topic)
            connection.commit()

    def unsettled(self) -> int:
        return int(self.query("select count(*) from relevo_outbox where settled_at is null")[0][0])

    def outcomes(self) -> dict[str | None, int]:
        """What became of the rows; ``None``: unsettled."""
        return dict(self.query("select outcome, count(*) from relevo_outbox group by outcome"))

    def source(self, database: Database, relay_id: UUID, lease_s: float) -> Source:
        """What a relay reads this database with."""
        return MarkSource(database, relay_id, 64, lease_s=lease_s)


def sqlite_store(path: Path) -> Store:
    create_schema(str(path))
    return Store(f"sqlite:///{path}")


def postgres_store(url: str) -> Store:
    create_schema(url)
    return Store(url)


@dataclass
class Running:
    engine: RelayEngine
    publisher: FakePublisher
    database: Database
    stop: asyncio.Event
    task: asyncio.Task[None]


@contextlib.asynccontextmanager
async def running_relay(
    store: Store,
    publisher: FakePublisher | None = None,
    *,
    lease_s: float = 5.0,
    tick_s: float = 0.1,
    batch_max: int = 100,
    policy: Policy | None = None,
    pauses: Pauses | None = None,
) -> AsyncIterator[Running]:
    """A relay engine with its ownership task, until the block ends; then a clean stop."""
    publisher = publisher if publisher is not None else FakePublisher()
    database = database_for(store.settings)
    relay_id = uuid4()
    settings = RelaySettings(
        lease_s=lease_s, send_timeout_s=lease_s / 5, batch_max=batch_max, poll_min_s=0.005, poll_max_s=0.05
    )
    ownership = Ownership(database, relay_id, "test", 64, lease_s, settings.send_timeout_s)
    source = store.source(database, relay_id, lease_s)
    chosen = policy or Policy()
    engine = RelayEngine(database, source, publisher, ownership, settings, lambda topic: chosen)
    if pauses is not None:
        engine.take_pauses(pauses)
    stop = asyncio.Event()
    await ownership.tick()

    async def keep() -> None:
        while True:
            await asyncio.sleep(tick_s)
            version = ownership.version
            with contextlib.suppress(UnreachableError):
                await ownership.tick()
            if ownership.version != version:
                engine.wake.set()

    keeper = asyncio.create_task(keep())
    task = asyncio.create_task(engine.run(stop))
    running = Running(engine, publisher, database, stop, task)
    try:
        yield running
    finally:
        stop.set()
        await task
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
        await ownership.leave()
        await database.aclose()


__all__ = ["FakePublisher", "Running", "Settings", "Store", "postgres_store", "running_relay", "sqlite_store"]
