"""Real databases with real brokers: PostgreSQL with Kafka or RabbitMQ, SQLite with the embedded broker."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relevo.brokers import broker_for
from relevo.brokers.refusals import BEHIND, Refusals
from relevo.message import Message
from relevo.outcome import PublishOutcome
from relevo.ports.broker import Broker, BrokerCapabilities, Publisher
from tests.support.relays import FakePublisher, Running, Store, postgres_store, running_relay, sqlite_store

EMBEDDED = "sqlite-embedded"
KAFKA = "postgres-kafka"
RABBITMQ = "postgres-rabbitmq"
STACKS = (EMBEDDED, KAFKA, RABBITMQ)
SOURCE = "urn:relevo:test"
QUIET_S = 0.5


@dataclass
class Stack:
    """``topic``: of this test's own, and so are those that begin with it. ``options``: the broker's."""

    name: str
    store: Store
    broker_url: str
    options: dict[str, Any] = field(default_factory=dict)
    topic: str = field(default_factory=lambda: f"stack.{secrets.token_hex(6)}")

    @property
    def broker(self) -> Broker:
        return broker_for(self.broker_url, self.options)

    @property
    def group(self) -> str:
        """Who reads everything back: a group of this test's own."""
        return f"wire-{self.topic}"

    async def open(self, *topics: str) -> None:
        """Create them (``topic`` when none is named), with a group that waits for what they get: a broker without
        history would keep nothing otherwise."""
        broker = self.broker
        named = topics or (self.topic,)
        await broker.ensure_topics(named)
        if not broker.capabilities.keeps_history:
            await (await broker.subscribe(self.group, named)).aclose()

    async def read(self, enough: int, *topics: str, patience_s: float = 40.0) -> list[Message]:
        """All messages, in the order of each shard: until ``enough`` different ones came, and no more do."""
        subscription = await self.broker.subscribe(self.group, topics or (self.topic,))
        found: list[Message] = []
        deadline = time.monotonic() + patience_s
        try:
            while time.monotonic() < deadline:
                deliveries = await subscription.take(1000, QUIET_S)
                found.extend(delivery.message for delivery in deliveries)
                await subscription.settle(deliveries)
                if not deliveries and len({message.event_id for message in found}) >= enough:
                    break
        finally:
            await subscription.aclose()
        return found

    def limit(self, size: int) -> None:
        """Messages of more than ``size`` bytes are refused: by the topic, which exists, or by the broker's option."""
        if self.name == KAFKA:
            set_config(self.broker_url, self.topic, "max.message.bytes", str(size))
        else:
            self.options["message_bytes_max"] = size

    def config(self, *, lease_s: float, relay: str = "") -> str:
        """``relevo.toml`` for this stack."""
        options = "".join(f'"{name}" = {json.dumps(value)}\n' for name, value in self.options.items())
        return (
            f'[database]\nurl = "{self.store.url}"\n[broker]\nurl = "{self.broker_url}"\n[broker.options]\n{options}'
            f"[relay]\nlease_s = {lease_s}\nsend_timeout_s = {lease_s / 3}\n{relay}"
        )

    @contextlib.asynccontextmanager
    async def relay(
        self, answer: Callable[[Message], PublishOutcome | None] = lambda message: None, **options: Any
    ) -> AsyncIterator[Running]:
        """A relay engine on this stack, with a publisher of its own; ``answer`` may answer in the broker's place."""
        lease_s = options.setdefault("lease_s", 20.0)
        real = await self.broker.publisher(source=SOURCE, send_timeout_s=lease_s / 5)
        try:
            async with running_relay(self.store, Tap(real, answer), **options) as running:
                yield running
        finally:
            await real.aclose()


class Tap(FakePublisher):
    """A real publisher that notes what was accepted; prefix-safe as far as the real one is, and for its own answers."""

    def __init__(self, real: Publisher, answer: Callable[[Message], PublishOutcome | None]) -> None:
        super().__init__(answer)
        self._real = real
        self._closed = Refusals()

    @property
    def capabilities(self) -> BrokerCapabilities:
        return self._real.capabilities

    async def publish(self, messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
        number = self._closed.begin()
        try:
            return await self._hand_over(number, messages)
        finally:
            self._closed.end(number)

    async def _hand_over(self, number: int, messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
        self.calls += 1
        outcomes: dict[int, PublishOutcome] = {}
        passed: list[int] = []
        for index, message in enumerate(messages):
            name = (message.topic, message.key or b"")
            closed = message.key is not None and self._closed.closed(number, name)
            outcome = BEHIND if closed else self.answer(message)
            if outcome is None:
                passed.append(index)
                continue
            outcomes[index] = outcome
            if message.key is not None:
                self._closed.refuse(number, name)
        found = await self._real.publish([messages[index] for index in passed])
        for position, index in enumerate(passed):
            if position in found:
                outcomes[index] = found[position]
            else:
                self.log.append(messages[index])
        return outcomes

    async def probe(self, topic: str) -> PublishOutcome:
        return await self._real.probe(topic)

    async def aclose(self) -> None:
        await self._real.aclose()


def build(name: str, folder: Path, request: pytest.FixtureRequest) -> Stack:
    """A fresh database with Relevo's tables, and a topic's name that nobody else uses."""
    if name == EMBEDDED:
        options = {"auto_create": False, "busy_timeout_s": 1.0}
        return Stack(name, sqlite_store(folder / "app.db"), f"embedded:{folder / 'broker.db'}", options)
    store = postgres_store(request.getfixturevalue("pg_database"))
    if name == KAFKA:
        options = {"session.timeout.ms": 6000}
        return Stack(name, store, request.getfixturevalue("kafka_url"), options)
    return Stack(name, store, request.getfixturevalue("rabbitmq_url"), {"member_timeout_s": 2.0})


def set_config(kafka_url: str, topic: str, name: str, value: str) -> None:
    """One setting of a topic that exists; the broker goes by it when this returns.

    It says so a moment before it does; but changes are applied one after the other, so a second one that shows means
    that the first is through."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    admin = AdminClient({"bootstrap.servers": kafka_url.removeprefix("kafka://")})
    for setting, wanted in ((name, value), ("file.delete.delay.ms", str(50_000 + secrets.randbelow(10_000)))):
        entry = ConfigEntry(setting, wanted, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(10)
        deadline = time.monotonic() + 20
        while admin.describe_configs([resource])[resource].result(10)[setting].value != wanted:
            assert time.monotonic() < deadline, f"{setting} of {topic} does not become {wanted}"


def numbers(messages: Sequence[Message], key: bytes | None = None) -> list[int]:
    """The payloads, as they came; of one key, if it is named."""
    return [int(message.payload or b"0") for message in messages if key is None or message.key == key]


def in_order(messages: Sequence[Message], count: int, keys: int, start: int = 0) -> int:
    """Assert that the first copies are complete and in order per key; how many were repeats."""
    seen: dict[bytes, list[int]] = {}
    ids = set()
    for message in messages:
        if message.event_id not in ids:
            ids.add(message.event_id)
            seen.setdefault(message.key or b"", []).append(int(message.payload or b""))
    assert len(ids) == count
    for key in range(keys):
        assert seen[b"k%d" % key] == [number for number in range(start, start + count) if number % keys == key]
    return len(messages) - len(ids)
