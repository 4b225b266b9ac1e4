"""RabbitMQ by its URL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from relevo.brokers.rabbitmq import CAPABILITIES, topology
from relevo.brokers.rabbitmq.options import parse
from relevo.brokers.rabbitmq.publisher import RabbitPublisher
from relevo.brokers.rabbitmq.subscription import RabbitSubscription
from relevo.clients.aio_pika import aiormq, close, connect, end_if_cancelled, lost, place_of
from relevo.errors import UnreachableError
from relevo.ports.broker import SEND_TIMEOUT_S

T = TypeVar("T")

ADMIN_TIMEOUT_S = 30.0


class RabbitBroker:
    """The ``Broker`` port on ``amqp://user:password@host:port/vhost`` or ``amqps://…``."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        aiormq()  # a missing extra is said now
        self._options = parse(url, options)
        self._url = url
        self.capabilities = msgspec.structs.replace(CAPABILITIES, message_bytes_max=self._options.message_bytes_max)
        self.url = f"{url.partition(':')[0]}://{place_of(url)}"

    def __repr__(self) -> str:
        return f"RabbitBroker({self.url!r})"

    async def publisher(self, *, source: str, send_timeout_s: float = SEND_TIMEOUT_S) -> RabbitPublisher:
        return RabbitPublisher(self._url, self._options, source, send_timeout_s)

    async def subscribe(
        self, consumer: str, topics: Sequence[str], *, from_start: bool = True, commands: bool = True
    ) -> RabbitSubscription:
        """``from_start`` changes nothing: a queue begins when it is declared, and keeps everything from then on."""
        subscription = RabbitSubscription(self._url, self._options, consumer, topics, commands)
        await subscription.start()
        return subscription

    async def ensure_topics(self, topics: Sequence[str]) -> Sequence[str]:
        async def create(connection: Any) -> Sequence[str]:
            missing = [topic for topic in dict.fromkeys(topics) if not await topology.exists(connection, topic)]
            for topic in missing:
                await topology.declare_topic(connection, topic)
            return missing

        return await self._with_connection(create)

    async def check(self) -> None:
        async def nothing(connection: Any) -> None:
            await (await connection.channel()).close()

        await self._with_connection(nothing)

    async def _with_connection(self, work: Callable[[Any], Awaitable[T]]) -> T:
        connection = await connect(self._url, timeout_s=self._options.connect_timeout_s, name="relevo-admin")
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                return await work(connection)
        except lost() as error:
            end_if_cancelled()
            raise UnreachableError(f"RabbitMQ at {self.url}: {type(error).__name__}") from error
        finally:
            await close(connection)
