"""A consumer's queues, consumed by one member: which of them are ours, what arrived, what was settled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, TypeVar

from relevo.brokers.rabbitmq import topology
from relevo.brokers.rabbitmq.group import Group
from relevo.brokers.rabbitmq.options import RabbitOptions
from relevo.brokers.rabbitmq.shard import Shard, take_from
from relevo.clients.aio_pika import close, connect, end_if_cancelled, let_go, lost, place_of, settled_down
from relevo.errors import ConfigError, MisuseError, RelevoError, UnreachableError
from relevo.policy import PROBE_BACKOFF
from relevo.ports.broker import Delivery, Revoked
from relevo.tasks import Kept, Tasks

T = TypeVar("T")

log = logging.getLogger("relevo.brokers.rabbitmq")

RPC_TIMEOUT_S: Final = 10.0
REVOKE_TIMEOUT_S: Final = 30.0
LOOK_EVERY_S: Final = 0.1  # at a queue that will be ours and is still consumed by another member
MISSING_EVERY_S: Final = 2.0
"""At topics that do not exist."""


class RabbitSubscription:
    """The ``Subscription`` port. ``hand_back`` keeps the messages here: they are still ours and unsettled, and their
    order is not left to a requeue."""

    def __init__(self, url: str, options: RabbitOptions, consumer: str, topics: Sequence[str], commands: bool) -> None:
        self._url = url
        self._options = options
        self._consumer = consumer
        self._commands = commands
        self._missing = set(topics)
        self._there: set[str] = set()
        self._shards: dict[str, Shard] = {}
        self._positions: dict[str, int] = {}
        self._generation = 0
        self._connection: Any = None
        self._stir = asyncio.Event()
        self._group = Group(consumer, topics, options.member_timeout_s, self._stir.set)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._worker: Kept | None = None
        self._revoked: Revoked | None = None
        self._problem: RelevoError | None = None
        self._paused = self._closed = False

    async def start(self) -> None:
        """Declare the queues: messages are kept for this consumer from now on. Raises ``UnreachableError`` or
        ``ConfigError``."""
        await self._connect()
        tasks = Tasks(f"consumer {self._consumer}", log)
        self._worker = tasks.keep("working with RabbitMQ", self._keep_going, may_end=lambda: self._closed)

    async def take(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        if self._closed:
            raise MisuseError("this subscription is closed")
        deadline = self._loop.time() + timeout_s
        while not self._closed:
            self._news.clear()
            if not self._paused and (found := take_from(self._shards, max_messages)):
                return found
            if self._problem is not None:
                raise type(self._problem)(str(self._problem))
            if self._missing:
                raise ConfigError(
                    f"RabbitMQ has no exchange for {', '.join(sorted(self._missing))}: create the topic first"
                )
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._news.wait()
        return []

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        by_shard: dict[str, list[int]] = {}
        for delivery in deliveries:
            if self.owns(delivery):
                by_shard.setdefault(delivery.shard, []).append(delivery.position)
        for name, positions in by_shard.items():
            shard = self._shards.get(name)
            if shard is not None:
                with contextlib.suppress(*lost()):  # lost: they come again
                    await shard.settle(positions)

    async def flush(self) -> None:
        for shard in list(self._shards.values()):
            if shard.unsaid:
                shard.unsaid = False
                await self._ask(shard.acknowledged())

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if self.owns(delivery):
                self._shards[delivery.shard].hand_back(delivery)
        self._news.set()

    def pause(self) -> None:
        self._paused = True  # what arrives waits here, up to the prefetch

    def resume(self) -> None:
        self._paused = False
        self._news.set()

    def owns(self, delivery: Delivery) -> bool:
        shard = self._shards.get(delivery.shard)
        return shard is not None and shard.generation == delivery.generation

    def on_revoke(self, callback: Revoked) -> None:
        self._revoked = callback

    async def lag(self) -> Mapping[str, int]:
        found = {}
        for shard in list(self._shards.values()):
            if self._has(shard):
                try:
                    found[shard.name] = await self._ask(shard.unsettled())
                except UnreachableError:
                    if self._has(shard):
                        raise
        return {name: count for name, count in found.items() if name in self._shards}

    async def shard_count(self) -> int:
        return len(self._there | self._missing) * self._options.queues

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._news.set()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker.over])
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*lost()):
                async with asyncio.timeout(RPC_TIMEOUT_S / 3):
                    await asyncio.gather(*[shard.channel.close() for shard in self._shards.values()])
                    await self._group.tell(leaving=True)
            self._shards.clear()
            await close(connection)
        await settled_down()

    async def _keep_going(self) -> None:
        failures = 0
        while not self._closed:
            began = self._loop.time()
            try:
                if self._connection is None:
                    await self._connect()
                self._problem = None
                await self._work()
            except RelevoError as error:
                self._problem = error
            except lost() as error:
                end_if_cancelled()
                if self._problem is None:
                    log.warning("consumer %s: lost RabbitMQ (%s); reconnecting", self._consumer, type(error).__name__)
                self._problem = self._away(error)
            self._lost()
            failures = failures + 1 if self._loop.time() - began < 5 else 1
            await asyncio.sleep(PROBE_BACKOFF.delay_s(failures))

    async def _connect(self) -> None:
        connection = await connect(self._url, timeout_s=self._options.connect_timeout_s, name="relevo-consumer")
        try:
            async with asyncio.timeout(RPC_TIMEOUT_S):
                await self._declare(connection, self._missing | self._there)
        except ConfigError:
            await close(connection)
            raise
        except lost() as error:
            let_go(connection)
            end_if_cancelled()
            raise self._away(error) from error
        self._connection = connection

    async def _declare(self, connection: Any, topics: set[str]) -> None:
        for topic in sorted(topics):
            if await topology.exists(connection, topic):
                await topology.declare_queues(connection, self._consumer, topic, self._options, self._commands)
                self._missing.discard(topic)
                self._there.add(topic)
            else:
                self._missing.add(topic)
                self._there.discard(topic)

    async def _work(self) -> None:
        """Have what is ours, until the connection breaks."""
        async with asyncio.timeout(RPC_TIMEOUT_S):
            await self._group.join(connection := self._connection)
        telling = asyncio.create_task(self._group.keep_telling())
        missing_at = self._loop.time() + MISSING_EVERY_S
        try:
            while not connection.is_closed and not telling.done():
                self._stir.clear()
                waiting = await self._balance(connection)
                if self._missing and self._loop.time() > missing_at:
                    async with asyncio.timeout(RPC_TIMEOUT_S):
                        await self._declare(connection, set(self._missing))
                    missing_at = self._loop.time() + MISSING_EVERY_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S if waiting else 0.5):
                        await self._stir.wait()
                if any(shard.channel.is_closed for shard in self._shards.values()):
                    raise ConnectionError("a channel was closed")
            raise ConnectionError("the connection was closed")
        finally:
            telling.cancel()
            await asyncio.wait([telling])
            if not telling.cancelled():
                telling.exception()

    async def _balance(self, connection: Any) -> bool:
        """Let go of what is not ours any more, take what is; whether some of it is still somebody else's."""
        mine = self._group.mine(topology.shards(sorted(self._there), self._options.queues))
        wanted = {topology.shard_name(topic, number): (topic, number) for topic, number in mine}
        leaving = [shard for name, shard in self._shards.items() if name not in wanted]
        if leaving:
            await self._leave(leaving)
        waiting = False
        for name, (topic, number) in wanted.items():
            if name not in self._shards:
                async with asyncio.timeout(RPC_TIMEOUT_S):
                    waiting = not await self._attach(connection, topic, number) or waiting
        return waiting

    async def _attach(self, connection: Any, topic: str, number: int) -> bool:
        queue = topology.queue_name(self._consumer, topic, number)
        channel = await connection.channel(publisher_confirms=False)
        declared = await channel.queue_declare(queue, passive=True)
        if declared.consumer_count:
            await channel.close()
            return False
        self._generation += 1
        name = topology.shard_name(topic, number)
        shard = Shard(topic, number, queue, channel, self._generation, self._positions.get(name, 0))
        channel.on_consumer_cancel_callbacks.add(self._cancelled)
        await shard.consume(self._options, self._news.set)
        self._shards[name] = shard
        return True

    def _cancelled(self, frame: Any) -> None:
        """The server ended a consumer: its queue was deleted, or its leader moved. Begin anew."""
        if self._connection is not None:
            let_go(self._connection)
        self._stir.set()

    async def _leave(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            shard.leaving = True
        if self._revoked is not None:
            try:
                async with asyncio.timeout(REVOKE_TIMEOUT_S):
                    await self._revoked([shard.name for shard in shards])
            except Exception:
                log.exception("consumer %s: the callback for revoked shards failed", self._consumer)
        for shard in shards:
            self._drop(shard)
        async with asyncio.timeout(RPC_TIMEOUT_S):
            await asyncio.gather(*[shard.channel.close() for shard in shards])
            await self._group.tell()

    def _has(self, shard: Shard) -> bool:
        return self._shards.get(shard.name) is shard and not shard.leaving

    async def _ask(self, question: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(RPC_TIMEOUT_S):
                return await question
        except lost() as error:
            end_if_cancelled()
            raise self._away(error) from None

    def _away(self, error: Exception) -> UnreachableError:
        return UnreachableError(f"RabbitMQ at {place_of(self._url)} does not answer ({type(error).__name__})")

    def _drop(self, shard: Shard) -> None:
        self._positions[shard.name] = shard.position
        self._shards.pop(shard.name, None)

    def _lost(self) -> None:
        for shard in list(self._shards.values()):
            self._drop(shard)
        connection, self._connection = self._connection, None
        if connection is not None:
            let_go(connection)
        self._news.set()
