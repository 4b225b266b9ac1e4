"""Ways for a broker to be away, and how an independent client finds out that it is back."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from relevo.brokers.rabbitmq.topology import queue_name
from tests.support.private_kafka import PrivateKafka
from tests.support.private_rabbitmq import PrivateRabbitMQ

EVERY_S = 0.05
PATIENCE_S = 120.0


@dataclass
class Killed:
    """SIGKILL, and a start when it is over. ``start`` waits for the server, so the probe runs beside it."""

    server: PrivateKafka | PrivateRabbitMQ
    topic: str

    def away(self) -> None:
        self.server.kill()

    def back(self) -> float:
        return served_again(self.server.start, self.server.url, self.topic)


@dataclass
class Frozen:
    """SIGSTOP and SIGCONT: the server's kernel accepts connections, and nobody ever answers."""

    server: PrivateKafka | PrivateRabbitMQ
    topic: str

    def away(self) -> None:
        self.server.freeze()

    def back(self) -> float:
        return served_again(self.server.thaw, self.server.url, self.topic)


@dataclass
class Locked:
    """A transaction of somebody else holds the embedded broker's file."""

    path: Path
    _holder: sqlite3.Connection | None = field(default=None, init=False)

    def away(self) -> None:
        self._holder = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self._holder.execute("begin exclusive")

    def back(self) -> float:
        assert self._holder is not None
        self._holder.execute("rollback")
        self._holder.close()
        return time.time()


def served_again(start: Callable[[], None], url: str, topic: str) -> float:
    """``start`` the server; the time at which a client of its own, which tries every 50 ms, was served by it."""
    return asyncio.run(_served_again(start, url, topic))


async def _served_again(start: Callable[[], None], url: str, topic: str) -> float:
    serve = _produced if url.startswith("kafka") else _connected
    serving = asyncio.create_task(serve(url, topic))
    await asyncio.to_thread(start)
    async with asyncio.timeout(PATIENCE_S):
        return await serving


async def _produced(url: str, topic: str) -> float:
    """When a produce was confirmed: with librdkafka's own retries, at most 50 ms apart."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": urlsplit(url).netloc,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 50,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    served: list[float] = []

    def reported(error: object, _: object) -> None:
        if error is None:
            served.append(time.time())

    producer.produce(topic, b"probe", on_delivery=reported)
    while not served:
        await asyncio.to_thread(producer.poll, EVERY_S)
    return served[0]


async def _connected(url: str, topic: str) -> float:
    """When a message to a queue of its own was confirmed."""
    import aiormq

    while True:
        began = time.monotonic()
        try:
            async with asyncio.timeout(2.0):
                connection = await aiormq.connect(url)
                try:
                    channel = await connection.channel(publisher_confirms=True)
                    queue = await channel.queue_declare(exclusive=True, auto_delete=True)
                    await channel.basic_publish(b"probe", routing_key=str(queue.queue), mandatory=True)
                    return time.time()
                finally:
                    await connection.close()
        except (OSError, RuntimeError, aiormq.exceptions.AMQPError):
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))


async def stored(url: str, topic: str, consumer: str) -> AsyncGenerator[int, None]:
    """How many messages of ``topic`` the broker holds (RabbitMQ: for ``consumer``), asked with each step."""
    if url.startswith("kafka"):
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient, OffsetSpec

        admin = AdminClient({"bootstrap.servers": urlsplit(url).netloc, "log_level": 0})
        partitions = list((await asyncio.to_thread(admin.list_topics, topic, 10)).topics[topic].partitions)
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        while True:
            try:
                ends = [found.result(10).offset for found in admin.list_offsets(wanted, request_timeout=10.0).values()]
            except KafkaException:  # a broker that has just come back does not know its partitions yet
                await asyncio.sleep(0.01)
            else:
                yield sum(ends)
    import aiormq

    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        number = range(4)  # as many queues as are declared by default
        while True:
            queues = [await channel.queue_declare(queue_name(consumer, topic, each), passive=True) for each in number]
            yield sum(queue.message_count or 0 for queue in queues)
    finally:
        await connection.close()


async def first_stored(url: str, topic: str, consumer: str, before: int) -> float:
    """The time at which the broker holds more than ``before`` messages, seen within 20 ms or so."""
    counts = stored(url, topic, consumer)
    try:
        async for count in counts:
            if count > before:
                return time.time()
            await asyncio.sleep(0.01)
    finally:
        await counts.aclose()
    raise AssertionError("it never ends")
