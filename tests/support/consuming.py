"""A database and a real broker with a consumer under test. Messages come by Relevo, or by a stranger's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relevo import Consumer
from relevo.errors import UnreachableError
from relevo.message import Message
from tests.support.consumers import FAST, Running, make_effects, order
from tests.support.stacks import EMBEDDED, KAFKA, RABBITMQ, SOURCE, Stack, build
from tests.support.waiting import eventually

SOON = {
    EMBEDDED: {"lease_s": 1.5, "auto_create": True},
    KAFKA: {"heartbeat.interval.ms": 500},
    RABBITMQ: {},
}
"""More options of the broker, with which it soon gives away what a dead member had."""

Headers = Sequence[tuple[str, bytes]]


@dataclass
class Consuming(Stack):
    """``consumer``: its name, of this test's own, so that tests do not meet in a group."""

    consumer: str = field(init=False)

    def __post_init__(self) -> None:
        self.consumer = self.topic.replace("stack.", "billing-")

    def billing(self, **options: Any) -> Consumer:
        """The consumer, without a handler yet."""
        return Consumer(self.consumer, [self.topic], **{"retry": FAST, **options})

    def order(self, number: int, key: str | None = "k", **more: Any) -> Message:
        return msgspec.structs.replace(order(number, key, **more), topic=self.topic)

    async def prepare(self) -> None:
        """The topic, and the consumer's place in it: a broker without history keeps what comes from then on."""
        broker = self.broker
        await broker.ensure_topics([self.topic])
        if not broker.capabilities.keeps_history:
            await (await broker.subscribe(self.consumer, [self.topic])).aclose()

    async def publish(self, *messages: Message) -> None:
        publisher = await self.broker.publisher(source=SOURCE)
        try:
            assert await publisher.publish(messages) == {}
        finally:
            await publisher.aclose()

    async def publish_as_stranger(
        self, body: bytes | None, headers: Headers = (), key: bytes | None = None, **properties: Any
    ) -> None:
        """By the broker's own client, which knows nothing of Relevo. ``properties``: of AMQP."""
        if self.name == KAFKA:
            await asyncio.to_thread(produce, self.broker_url, self.topic, body, headers, key)
        else:
            assert self.name == RABBITMQ, "the embedded broker has no other client"
            await basic_publish(self.broker_url, self.topic, body, headers, key, properties)

    async def settled(self, *members: Running, timeout_s: float = 60.0) -> None:
        """Until the running ``members`` have all of the topic's shards, and nothing there is unsettled."""
        try:
            await eventually(lambda: _settled(members), what="everything is settled", timeout_s=timeout_s, every_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; {await _unsettled(members)}") from None

    async def done(self, condition: Callable[[], object], *members: Running, what: str = "the effects") -> None:
        """Until ``condition`` holds and nothing is unsettled."""
        await eventually(condition, what=what, timeout_s=60.0, every_s=0.02)
        await self.settled(*members)


@cache
def producer_at(servers: str) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})


def produce(url: str, topic: str, body: bytes | None, headers: Headers, key: bytes | None) -> None:
    producer = producer_at(url.removeprefix("kafka://"))
    errors: list[Any] = []
    producer.produce(topic, body, key, headers=list(headers), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0 and errors == [None]


async def basic_publish(
    url: str, topic: str, body: bytes | None, headers: Headers, key: bytes | None, properties: dict[str, Any]
) -> None:
    import aiormq

    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        table: dict[str, Any] = {name: bytearray(value) for name, value in headers}
        if key is not None:
            table["ce_partitionkey"] = bytearray(key)
        await channel.basic_publish(
            body or b"",
            exchange=topic,
            routing_key="s07.anything",  # a slot, which strangers must name
            properties=aiormq.spec.Basic.Properties(headers=table, **properties),
            mandatory=True,
        )
    finally:
        await connection.close()


async def _settled(members: Sequence[Running]) -> bool:
    try:
        found = await _unsettled(members)
    except UnreachableError:  # of a channel that is closed just now, while shards change hands: it is not known
        return False
    owned = {shard for _, lag, _ in found for shard in lag}
    all_there = bool(found) and len(owned) == max(shards for _, _, shards in found)
    return all_there and not any(count or any(lag.values()) for count, lag, _ in found)


async def _unsettled(members: Sequence[Running]) -> list[tuple[int, dict[str, int], int]]:
    """In flight, the lag by shard, and how many shards there are, of each consumer."""
    intakes = [engine._intake for member in members for engine in member.runner._engines]
    found = []
    for intake in intakes:
        if intake is not None:
            lag = dict(await intake._subscription.lag())
            found.append((len(intake), lag, await intake._subscription.shard_count()))
    return found


async def open_consuming(name: str, folder: Path, request: pytest.FixtureRequest, **options: Any) -> Consuming:
    """A fresh database with Relevo's tables and one for effects, a topic, and a consumer that the broker knows."""
    built = build(name, folder, request)
    made = Consuming(name, built.store, built.broker_url, {**built.options, **SOON[name], **options})
    make_effects(made.store)
    await made.prepare()
    return made
