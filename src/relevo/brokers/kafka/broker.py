"""Kafka by its URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from relevo.brokers.kafka import CAPABILITIES
from relevo.brokers.kafka.admin import Topics
from relevo.brokers.kafka.history import KafkaHistory
from relevo.brokers.kafka.options import parse
from relevo.brokers.kafka.publisher import KafkaPublisher
from relevo.brokers.kafka.subscription import KafkaSubscription
from relevo.clients.confluent import confluent
from relevo.ports.broker import SEND_TIMEOUT_S


class KafkaBroker:
    """The ``Broker`` port on ``kafka://host:port[,host:port]``."""

    capabilities = CAPABILITIES

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        confluent()  # a missing extra is said now
        self._options = parse(url, options)
        self.url = f"kafka://{self._options.servers}"

    def __repr__(self) -> str:
        return f"KafkaBroker({self.url!r})"

    async def publisher(self, *, source: str, send_timeout_s: float = SEND_TIMEOUT_S) -> KafkaPublisher:
        return KafkaPublisher(self._options, source, send_timeout_s)

    async def subscribe(
        self, consumer: str, topics: Sequence[str], *, from_start: bool = True, commands: bool = True
    ) -> KafkaSubscription:
        subscription = KafkaSubscription(self._options, consumer, topics, from_start)
        subscription.start()
        return subscription

    async def history(
        self, topics: Sequence[str], *, since: datetime | None = None, after: Mapping[str, int] | None = None
    ) -> KafkaHistory:
        history = KafkaHistory(self._options)
        try:
            await history.open(list(dict.fromkeys(topics)), since, after or {})
        except BaseException:
            await history.aclose()
            raise
        return history

    async def ensure_topics(self, topics: Sequence[str]) -> Sequence[str]:
        return await Topics(self._options).create(topics, self._options.own.partitions, self._options.own.replication)

    async def check(self) -> None:
        await Topics(self._options).check()
