"""A relay and a consumer whose every connection goes through a proxy of its own that a test may make hang."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from relevo import Consumer, Event, Outbox, Relay, event
from relevo.brokers import broker_for
from relevo.consumer import ConsumerRunner
from relevo.settings import BrokerSettings, ConsumerSettings, DatabaseSettings, RelaySettings, Settings
from tests.support.consumers import effects, held, insert, make_effects
from tests.support.hanging import HangingProxy, hanging
from tests.support.log_stores import log_store
from tests.support.relays import Store, postgres_store
from tests.support.waiting import eventually

LEASE_S = 4.0
STOP_S = 6.0
NOTICED_S = 2 * LEASE_S
"""A lease, and as much again for a slow machine."""
RECOVERED_S = 40.0
KAFKA_SESSION_MS = 6000
"""The shortest that a Kafka takes."""
SLACK_S = 4.0


@dataclass
class Scene:
    """``proxies`` by the name of what goes through them; ``problems`` were seen in the health of either side."""

    store: Store
    broker_url: str
    topic: str
    proxies: dict[str, HangingProxy]
    kind: Any
    relay: Relay
    runner: ConsumerRunner
    added: int = 0
    problems: set[str] = field(default_factory=set)

    def add(self, count: int) -> None:
        with psycopg.connect(self.store.url) as connection:
            numbers = range(self.added, self.added + count)
            Outbox().add_many(connection, [self.kind(number) for number in numbers])
        self.added += count

    async def handled(self, what: str, timeout_s: float = RECOVERED_S) -> None:
        await eventually(lambda: len(effects(self.store)) >= self.added, what=what, timeout_s=timeout_s, every_s=0.05)

    async def even(self) -> None:
        """Everything that was added was handled once, and nothing is held."""
        await self.handled("all is handled")
        assert sorted(effects(self.store)) == list(range(self.added))
        assert held(self.store) == []

    @property
    def ready(self) -> bool:
        return self.relay.health().ready and self.runner.health().ready

    def look(self) -> bool:
        """Whether something is not well, which is noted."""
        found = {*self.relay.health().problems.values(), *self.runner.health().problems.values()}
        self.problems |= {str(problem) for problem in found}
        return bool(found)


@contextlib.asynccontextmanager
async def scene(
    pg_database: str,
    folder: Path,
    *,
    broker: str,
    link: str,
    source: str = "log",
    make_consumer: Callable[[Any, str, str], Consumer] | None = None,
    store: Store | None = None,
    through: HangingProxy | None = None,
) -> AsyncIterator[Scene]:
    """``broker``: ``embedded``, ``postgres`` or a URL of RabbitMQ or Kafka. ``through``: the proxy before that Kafka,
    to which it sends its clients. ``link``: which connections go through a proxy:
    ``relay database``, ``relay broker``, ``consumer database``, ``consumer broker`` or ``handler``. ``store``: with
    tables already; otherwise they are made."""
    if store is None:
        store = log_store(pg_database) if source == "log" else postgres_store(pg_database)
    make_effects(store)
    topic = f"t{secrets.token_hex(5)}.order"

    @event(f"{topic}.placed", key="order_id")
    class Placed(msgspec.Struct, frozen=True):
        order_id: int

    url = {"embedded": f"embedded:{folder / 'broker.db'}", "postgres": store.url}.get(broker, broker)
    options: dict[str, Any] = {"lease_s": LEASE_S} if broker in ("embedded", "postgres") else {}
    if broker.startswith("kafka"):
        options = {"socket.timeout.ms": 2000, "session.timeout.ms": KAFKA_SESSION_MS}
    broker_url = url
    with contextlib.ExitStack() as stack:
        target = url if link.endswith("broker") else store.url
        port = 5672 if target.startswith("amqp") else 5432
        proxy = stack.enter_context(hanging(target, port)) if through is None else through
        via = proxy.through(target)
        settings = {
            side: Settings(
                database=DatabaseSettings(url=via if link == f"{side} database" else store.url),
                broker=BrokerSettings(url=via if link == f"{side} broker" else broker_url, options=options),
                relay=RelaySettings(lease_s=LEASE_S, send_timeout_s=1.0, stop_timeout_s=STOP_S, source=source),  # type: ignore[arg-type]
                consumer=ConsumerSettings(lease_s=LEASE_S, stop_timeout_s=STOP_S, threads=4, connections_max=4),
            )
            for side in ("relay", "consumer")
        }
        consumer = make_consumer(Placed, topic, via) if make_consumer is not None else _plain(Placed, topic)
        await broker_for(broker_url, options).ensure_topics([topic])
        runner = ConsumerRunner(consumer, settings["consumer"])
        ready = asyncio.Event()
        running = asyncio.create_task(runner.run(on_ready=ready.set))
        try:
            await asyncio.wait([running, asyncio.ensure_future(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            async with Relay(settings["relay"]) as relay:
                yield Scene(store, broker_url, topic, {link: proxy}, Placed, relay, runner)
                began = time.monotonic()
            assert time.monotonic() - began < STOP_S + SLACK_S, "the relay did not leave in its bound"
        finally:
            began = time.monotonic()
            runner.stop()
            await asyncio.wait([running], timeout=60)
        assert time.monotonic() - began < STOP_S + SLACK_S, "the consumer did not leave in its bound"
        running.result()


def _plain(kind: Any, topic: str) -> Consumer:
    consumer = Consumer(f"c-{topic}", [topic])

    def handle(event: Any, tx: psycopg.Connection[Any]) -> None:
        insert(tx, event.data.order_id)

    handle.__annotations__["event"] = Event[kind]
    consumer.on(kind)(handle)
    return consumer
