"""Publishing with confirms: many messages under way, bounded, each with an outcome of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from relevo.brokers.rabbitmq import CAPABILITIES, topology
from relevo.brokers.rabbitmq.framing import to_properties
from relevo.brokers.rabbitmq.link import Link
from relevo.brokers.rabbitmq.options import SLOTS, RabbitOptions
from relevo.brokers.rabbitmq.outcomes import OF_ONE, classify
from relevo.brokers.rejections import too_large
from relevo.errors import ConfigError, MisuseError, UnreachableError
from relevo.outcome import Accepted, PublishOutcome, Rejected, Unavailable
from relevo.outgoing import Sendable

CAREFUL_FOR_S: Final = 60.0
"""After the server closed the channel on some message, messages go one by one for so long: then it is known which."""


SHORT_TEXT_MAX = 255
"""Bytes of a header's name: AMQP 0-9-1 counts them in one byte."""


class RabbitPublisher:
    """The ``Publisher`` port. Not prefix-safe: messages of a call are under way together, and one may be refused while
    the next is taken; the relay hands over one message of a key at a time."""

    capabilities = CAPABILITIES

    def __init__(self, url: str, options: RabbitOptions, source: str, send_timeout_s: float) -> None:
        self._options = options
        self._send_timeout_s = send_timeout_s
        self._source = source.encode()
        self._link = Link(url, options)
        self._turn = asyncio.Lock()
        self._window = asyncio.Semaphore(options.window)
        self._spread = itertools.count()
        self._calls: set[asyncio.Future[Any]] = set()
        self._careful_until = 0.0
        self._closed = False

    async def publish(self, messages: Sequence[Sendable]) -> Mapping[int, PublishOutcome]:
        if self._closed:
            raise MisuseError("this publisher is closed")
        outcomes: dict[int, PublishOutcome] = {}
        tasks: dict[int, asyncio.Task[Any]] = {}
        try:
            async with self._turn:  # calls hand over one after another, and wait for confirms together
                number = await self._hand_over(messages, outcomes, tasks)
            if tasks:
                await self._confirms(tasks, number)
        except asyncio.CancelledError:
            for task in tasks.values():
                task.cancel()
            raise
        self._judge(tasks, outcomes, alone=False)
        return dict(sorted(outcomes.items()))

    async def probe(self, topic: str) -> PublishOutcome:
        return await self._link.topic(topic, fresh=True)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=self._send_timeout_s)
        await self._link.aclose()

    async def _hand_over(
        self, messages: Sequence[Sendable], outcomes: dict[int, PublishOutcome], tasks: dict[int, asyncio.Task[Any]]
    ) -> int:
        """Start what can be sent; returns the number of the connection it went to."""
        loop = asyncio.get_running_loop()
        link = self._link
        known = {topic: await link.topic(topic) for topic in dict.fromkeys(message.topic for message in messages)}
        try:
            channel = await link.channel()
        except (UnreachableError, ConfigError) as error:
            outcomes.update(dict.fromkeys(range(len(messages)), Unavailable(str(error))))
            return link.number
        number = link.number
        link.last_sign = loop.time()
        broken = alone = False
        for index, message in enumerate(messages):
            refused = self._refused(message, known[message.topic])
            if refused is None and self._careful and not broken:
                alone = await self._alone()
                try:
                    channel = await link.channel()  # a new one, if the message before has closed it
                    number = link.number
                except (UnreachableError, ConfigError) as error:
                    broken = True
                    refused = Unavailable(str(error))
            if refused is None and (broken or not link.open or link.number != number):
                refused = Unavailable("not sent: the connection was lost before its turn")
            if refused is None and not await self._room():
                broken = True
                refused = Unavailable("not sent: RabbitMQ confirms nothing")
            if refused is not None:
                outcomes[index] = refused
                continue
            task = tasks[index] = loop.create_task(self._send(channel, message))
            self._calls.add(task)
            task.add_done_callback(self._ended)
            if self._careful:
                await self._confirms({index: task}, number)
                self._judge({index: task}, outcomes, alone=alone)
                del tasks[index]
        return number

    async def _alone(self) -> bool:
        """Whether nothing else is under way, waited for: then a closed channel was closed for the next message."""
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=self._send_timeout_s)
        return not self._calls

    async def _room(self) -> bool:
        """Wait for a place among the unconfirmed; ``False`` when nothing is confirmed any more."""
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._window.acquire()
        except TimeoutError:
            self._link.give_up()
            return False
        return True

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        self._window.release()
        if not task.cancelled() and task.exception() is None:
            self._link.last_sign = asyncio.get_running_loop().time()

    async def _send(self, channel: Any, message: Sendable) -> None:
        key = message.key
        slot = next(self._spread) % SLOTS if key is None else topology.slot_of(key)
        if message.kind == "command":
            exchange, routing_key = topology.commands_of(message.topic), topology.command_key(slot)
        else:
            exchange, routing_key = message.topic, topology.routing_key(slot, message.type)
        await channel.basic_publish(
            message.payload or b"",
            exchange=exchange,
            routing_key=routing_key,
            properties=to_properties(message, self._source),
            mandatory=True,
            wait=False,
        )

    async def _confirms(self, tasks: Mapping[int, asyncio.Task[Any]], number: int) -> None:
        """Until each has ended, or the server has confirmed nothing for ``send_timeout_s``."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pending = {task for task in tasks.values() if not task.done()}
        while pending:
            quiet_s = loop.time() - max(began, self._link.last_sign)
            left_s = self._send_timeout_s - quiet_s
            if left_s <= 0 or self._link.number != number:
                break
            _, pending = await asyncio.wait(pending, timeout=min(left_s, 0.5))
        if pending:
            if self._link.number == number:
                self._link.give_up()
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)

    def _judge(
        self, tasks: Mapping[int, asyncio.Task[Any]], outcomes: dict[int, PublishOutcome], *, alone: bool
    ) -> None:
        for index, task in tasks.items():
            error = None if task.cancelled() else task.exception()
            if error is None and not task.cancelled():
                continue
            name = type(error).__name__
            outcomes[index] = classify(error, alone=alone)
            if name in OF_ONE:
                self._careful_until = asyncio.get_running_loop().time() + CAREFUL_FOR_S
            if name == "ChannelNotFoundEntity":  # a topic was deleted under us
                self._link.forget_topics()

    @property
    def _careful(self) -> bool:
        return self._careful_until > 0 and asyncio.get_running_loop().time() < self._careful_until

    def _refused(self, message: Sendable, topic: PublishOutcome) -> PublishOutcome | None:
        if not isinstance(topic, Accepted):
            return topic
        if (rejected := too_large(message, self._options.message_bytes_max)) is not None:
            return rejected
        # The type stands in the routing key as well, behind a slot.
        if len(message.type.encode()) > SHORT_TEXT_MAX - 4 or len(message.content_type.encode()) > SHORT_TEXT_MAX:
            return Rejected("cannot_be_encoded", f"its type or content type has more than {SHORT_TEXT_MAX} bytes")
        for name in message.headers:
            if len(name.encode()) > SHORT_TEXT_MAX:  # written by hand; an append through Relevo refuses it
                return Rejected(
                    "cannot_be_encoded", f"a header's name has more than {SHORT_TEXT_MAX} bytes: {name[:40]!r}…"
                )
        return None
