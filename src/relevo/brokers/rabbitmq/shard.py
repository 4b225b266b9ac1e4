"""One queue while we consume it: a channel of its own, so that letting go of it gives everything unsettled back at once
and in order. (``basic.cancel`` would make the next consumer active while we still hold messages.)"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from relevo import wire
from relevo.brokers.rabbitmq.framing import WithoutId, malformed, to_message
from relevo.brokers.rabbitmq.options import RabbitOptions
from relevo.brokers.rabbitmq.topology import shard_name
from relevo.ports.broker import Delivery


class Shard:
    """``arrived``: delivered by the server, not taken. ``returned``: handed back, to be taken before those.
    ``leaving``: being given up; what was taken can still be settled. ``unsaid``: acks were written since the
    last ``flush``. Positions are counted here and only grow, also over generations: the server numbers deliveries, not
    messages. In another process they say nothing."""

    __slots__ = (
        *("_acking", "_done", "_tags", "arrived", "channel", "generation", "leaving", "name", "number"),
        *("position", "queue", "returned", "topic", "unsaid", "without_id"),
    )

    def __init__(self, topic: str, number: int, queue: str, channel: Any, generation: int, position: int) -> None:
        self.topic = topic
        self.number = number
        self.name = shard_name(topic, number)
        self.queue = queue
        self.channel = channel
        self.generation = generation
        self.position = position
        self.arrived: deque[Any] = deque()
        self.returned: list[Delivery] = []
        self.leaving = False
        self.unsaid = False
        self.without_id: WithoutId = "run"
        self._tags: dict[int, int] = {}  # position → delivery tag, of what was taken and is not settled; in order
        self._done: set[int] = set()
        self._acking = asyncio.Lock()

    async def consume(self, options: RabbitOptions, news: Callable[[], None]) -> None:
        self.without_id = options.without_id

        async def arrived(delivered: Any) -> None:
            self.arrived.append(delivered)
            news()

        await self.channel.basic_qos(prefetch_count=options.prefetch)
        await self.channel.basic_consume(self.queue, arrived)

    async def undelivered(self) -> int:
        """Messages that wait in the queue and are with nobody. Raises ``ConnectionError`` where that is not known."""
        declared = await self.channel.queue_declare(self.queue, passive=True)
        if not declared.consumer_count:  # we are one: this is what a server says whose queue does not answer
            raise ConnectionError("the queue has no leader, or does not answer")
        return int(declared.message_count)

    async def unsettled(self) -> int:
        """Messages in the queue, and those the server has given us that are not settled.

        A queue that has given its last message may say so before that message: it is in the server's mailbox for this
        channel. On a server of one node it is here when a second question has its answer. While messages come in, a
        count is one of a moment; no message that was in the queue is missing from a zero.
        """
        waiting = await self.undelivered()
        if not waiting:
            await self.undelivered()
        return waiting + len(self.arrived) + len(self._tags) - len(self._done)

    def take(self, count: int) -> list[Delivery]:
        found = self.returned[:count]
        del self.returned[:count]
        while self.arrived and len(found) < count:
            found.append(self._deliver(self.arrived.popleft()))
        return found

    def hand_back(self, delivery: Delivery) -> None:
        if delivery.position not in self._tags or delivery.position in self._done:
            return
        place = bisect.bisect_left(self.returned, delivery.position, key=lambda other: other.position)
        if self.returned[place : place + 1] != [delivery]:
            self.returned.insert(place, delivery)

    async def settle(self, positions: Sequence[int]) -> None:
        """Acknowledge; what is a contiguous prefix of all that was taken goes in one frame.

        One call after the other: the client's queue of frames has an end, and who waits for room there may be passed by
        a later one. To acknowledge what an acknowledgement of all before it has covered closes the channel.
        """
        async with self._acking:
            await self._settle(positions)

    async def acknowledged(self) -> None:
        """Acknowledgements have no answer; one to a later question on the channel says that they were read."""
        async with self._acking:
            await self.channel.queue_declare(self.queue, passive=True)

    async def _settle(self, positions: Sequence[int]) -> None:
        tags, done = self._tags, self._done
        fresh = [position for position in positions if position in tags and position not in done]
        if not fresh:
            return
        done.update(fresh)
        up_to = 0
        for position in list(tags):
            if position not in done:
                break
            up_to = tags.pop(position)
            done.discard(position)
        self.unsaid = True
        if up_to:
            await self.channel.basic_ack(up_to, multiple=True, wait=False)
        for position in fresh:
            if position in done:  # behind something unsettled
                await self.channel.basic_ack(tags.pop(position), wait=False)
                done.discard(position)

    def _deliver(self, delivered: Any) -> Delivery:
        self.position += 1
        frame = delivered.delivery
        self._tags[self.position] = frame.delivery_tag
        try:
            message = to_message(self.topic, delivered, self.name, self.position, self.without_id)
            problem = malformed(delivered, self.without_id)
        except Exception as error:  # noqa: BLE001 - a stranger's message
            body = bytes(delivered.body)
            message, problem = wire.stand_in(
                self.topic, None, body, shard=self.name, position=self.position, error=error
            )
        return Delivery(
            message=message,
            shard=self.name,
            position=self.position,
            generation=self.generation,
            redelivered=frame.redelivered,
            malformed=problem,
        )


def take_from(shards: dict[str, Shard], max_messages: int) -> list[Delivery]:
    """What arrived, of all of them; every shard is the first one at some time."""
    found: list[Delivery] = []
    for name in list(shards):
        shard = shards[name]
        if shard.leaving or not (shard.arrived or shard.returned):
            continue
        shards[name] = shards.pop(name)
        found.extend(shard.take(max_messages - len(found)))
        if len(found) >= max_messages:
            break
    return found
