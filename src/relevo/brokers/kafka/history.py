"""Reading Kafka's log again, apart from any group: partitions by hand, nothing committed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, Final

from relevo.brokers.kafka.options import KafkaOptions
from relevo.brokers.kafka.shard import Shard, shard_name
from relevo.clients.confluent import confluent, make
from relevo.errors import ConfigError, UnreachableError
from relevo.ports.broker import Delivery
from relevo.times import to_us

TIMEOUT_S: Final = 10.0


class KafkaHistory:
    """The ``History`` port. librdkafka blocks, so each call runs in a thread; one at a time."""

    def __init__(self, options: KafkaOptions) -> None:
        config = {**options.consumer("relevo-history"), "enable.partition.eof": True}
        self._consumer: Any = make("Consumer", config)
        self._servers = options.servers
        self._ends: dict[str, int] = {}
        self._shards: dict[str, Shard] = {}

    async def open(self, topics: Sequence[str], since: datetime | None, after: Mapping[str, int]) -> None:
        await self._in_thread(lambda: self._begin(topics, since, after))

    async def take(self, max_messages: int) -> Sequence[Delivery]:
        while self._ends:
            found: list[Delivery] = []
            for record in await self._in_thread(lambda: self._consumer.consume(max_messages, 0.5)):
                self._read(record, found)
            if found:
                return found
        return []

    async def aclose(self) -> None:
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            self._ends.clear()
            await asyncio.to_thread(consumer.close)

    def _read(self, record: Any, found: list[Delivery]) -> None:
        module = confluent()
        error = record.error()
        name = shard_name(record.topic(), record.partition()) if record.topic() is not None else ""
        if error is not None:
            if error.code() == module.KafkaError._PARTITION_EOF:
                self._ends.pop(name, None)
                return
            raise UnreachableError(f"Kafka at {self._servers} gives no more of its history: {error.name()}")
        end = self._ends.get(name)
        if end is None or record.offset() >= end:
            self._ends.pop(name, None)
            return
        shard = self._shards[name]
        shard.arrived.append(record)
        found.extend(shard.take(1))
        if record.offset() == end - 1:
            self._ends.pop(name, None)

    def _begin(self, topics: Sequence[str], since: datetime | None, after: Mapping[str, int]) -> None:
        partition_of = confluent().TopicPartition
        begin = []
        for topic in topics:
            described = self._consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
            if described.error is not None or not described.partitions:
                raise ConfigError(f"there is no topic {topic!r} at Kafka at {self._servers}")
            for number in described.partitions:
                name = shard_name(topic, number)
                low, high = self._consumer.get_watermark_offsets(
                    partition_of(topic, number), timeout=TIMEOUT_S, cached=False
                )
                start = low
                if name in after:
                    start = max(low, after[name] + 1)
                elif since is not None:
                    wanted = partition_of(topic, number, max(0, to_us(since) // 1000))
                    (place,) = self._consumer.offsets_for_times([wanted], timeout=TIMEOUT_S)
                    start = high if place.offset < 0 else max(low, place.offset)
                if start < high:
                    self._ends[name] = high
                    self._shards[name] = Shard(topic, number, repeat(0))
                    begin.append(partition_of(topic, number, start))
        if begin:
            self._consumer.assign(begin)

    async def _in_thread(self, work: Any) -> Any:
        module = confluent()
        try:
            return await asyncio.to_thread(work)
        except module.KafkaException as error:
            name = error.args[0].name() if error.args and hasattr(error.args[0], "name") else type(error).__name__
            raise UnreachableError(f"Kafka at {self._servers} does not give its history: {name}") from error
