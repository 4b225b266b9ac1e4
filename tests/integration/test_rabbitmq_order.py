"""Order per key on RabbitMQ when messages are returned to a quorum queue again and again, with many in flight.

A server puts what is returned behind what was returned before it. These tests run on RabbitMQ 3.10 and 4.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relevo.brokers import broker_for
from relevo.brokers.rabbitmq import topology
from relevo.brokers.rabbitmq.subscription import RabbitSubscription
from relevo.clients.aio_pika import close, connect, let_go
from relevo.errors import ConfigError, UnreachableError
from relevo.message import Message
from relevo.ports.broker import Delivery
from relevo.testing.broker_processes import make_message
from tests.support.waiting import eventually

GROUP = "books"
PREFETCH = 60


@pytest.fixture
def rabbitmq_url(each_rabbitmq_url: str) -> str:
    """Every test runs on both servers."""
    return each_rabbitmq_url


@pytest.fixture
async def topic(rabbitmq_url: str) -> str:
    name = f"rabbit.{secrets.token_hex(8)}"
    await broker_for(rabbitmq_url).ensure_topics([name])
    return name


class Effects:
    """What a consumer with an inbox would have done: each message once, in the order of first deliveries."""

    def __init__(self) -> None:
        self.done: dict[object, None] = {}
        self.by_key: dict[bytes, list[int]] = {}
        self.redelivered = 0

    def add(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            message = delivery.message
            self.redelivered += bool(delivery.redelivered)
            if message.event_id not in self.done:
                self.done[message.event_id] = None
                self.by_key.setdefault(message.key or b"", []).append(int(message.payload or b""))


async def publish(url: str, topic: str, count: int, keys: int) -> list[Message]:
    messages = [make_message(topic, key=b"k%d" % (n % keys), payload=b"%d" % n) for n in range(count)]
    publisher = await broker_for(url).publisher(source="urn:relevo:test")
    assert await publisher.publish(messages) == {}
    await publisher.aclose()
    return messages


async def cut(member: RabbitSubscription) -> None:
    """As if its process were killed: nothing is said, the connection is gone."""
    assert member._worker is not None
    member._worker.cancel()
    await asyncio.wait([member._worker])
    let_go(member._connection)
    member._closed = True


@asynccontextmanager
async def admin_channel(url: str) -> AsyncIterator[Any]:
    connection = await connect(url, timeout_s=5.0, name="test")
    try:
        yield await connection.channel()
    finally:
        await close(connection)


async def taken(member: RabbitSubscription, timeout_s: float) -> Sequence[Delivery]:
    try:
        return await member.take(PREFETCH, timeout_s)
    except UnreachableError:
        await asyncio.sleep(timeout_s)  # it is on its way back
        return ()


@pytest.mark.soak
async def test_order_of_a_key_over_many_returns(rabbitmq_url: str, topic: str) -> None:
    """Two members compete for one queue of 600 messages of three keys. Fifteen times whoever has it works off a few of
    what is in its hands, settles some of them out of order, hands some back, and then leaves, loses its connection or
    ends without a word; everything else is returned at once. Each key's first deliveries come in order, and nothing is
    lost."""
    broker = broker_for(rabbitmq_url, {"queues": 1, "prefetch": PREFETCH, "member_timeout_s": 1.0})
    members: list[RabbitSubscription] = [await broker.subscribe(GROUP, [topic])]  # type: ignore[list-item]
    messages = await publish(rabbitmq_url, topic, 600, 3)
    effects = Effects()
    for number in range(15):
        if len(members) < 2:
            members.append(await broker.subscribe(GROUP, [topic]))  # type: ignore[arg-type]
        found: list[Delivery] = []

        async def many(found: list[Delivery] = found) -> bool:
            for member in members:
                found.extend(await taken(member, 0.02))
                found[:] = [delivery for delivery in found if any(each.owns(delivery) for each in members)]
            return len(found) >= PREFETCH // 2

        await eventually(many, what="many are in flight", timeout_s=40)
        owner = next(member for member in members if member.owns(found[-1]))
        worked = [delivery for delivery in found if owner.owns(delivery)][: 5 + number]
        effects.add(worked)
        await owner.settle([delivery for at, delivery in enumerate(worked) if at % 4 != 1])
        await owner.hand_back(worked[-2:])
        with contextlib.suppress(UnreachableError):  # its connection went between: what it settled comes again
            await owner.flush()
        match number % 5:
            case 0 | 2:
                let_go(owner._connection)
                continue
            case 1 | 3:
                await owner.aclose()
            case _:
                await cut(owner)
        members.remove(owner)

    async def all_done() -> bool:
        for member in members:
            deliveries = await taken(member, 0.1)
            effects.add(deliveries)
            await member.settle(deliveries)
        return len(effects.done) == len(messages)

    await eventually(all_done, what="everything arrived", timeout_s=60)
    for member in members:
        await member.aclose()
    assert effects.redelivered > 20
    assert effects.by_key == {b"k%d" % key: list(range(key, 600, 3)) for key in range(3)}


async def test_another_prefetch_is_refused(rabbitmq_url: str, topic: str) -> None:
    """A member with a lower prefetch would take a part of what another one returned, and return that behind the rest.
    So the prefetch is recorded as the number of queues is; a start with another one says which it was, and takes
    nothing. After its record is deleted (with the queues empty) it can be changed."""
    await (await broker_for(rabbitmq_url, {"prefetch": 50}).subscribe(GROUP, [topic])).aclose()
    for prefetch in (20, 250):
        with pytest.raises(ConfigError, match=r"began with another prefetch than \d+.*current is '50'"):
            await broker_for(rabbitmq_url, {"prefetch": prefetch}).subscribe(GROUP, [topic])
    async with admin_channel(rabbitmq_url) as channel:
        await channel.queue_delete(topology.prefetch_name(GROUP, topic))
    await (await broker_for(rabbitmq_url, {"prefetch": 20}).subscribe(GROUP, [topic])).aclose()


async def test_why_the_prefetch_is_fixed(rabbitmq_url: str, topic: str) -> None:
    """The server's behaviour that the record guards against: 50 returned, 20 of them taken and returned by a member
    with another prefetch, and the other 30 come first. If this fails on a new server, the record may go."""
    first, second = (broker_for(rabbitmq_url, {"queues": 1, "prefetch": prefetch}) for prefetch in (50, 20))
    await (await first.subscribe(GROUP, [topic])).aclose()
    await publish(rabbitmq_url, topic, 100, 1)
    for number, broker in enumerate((first, second, first)):
        async with admin_channel(rabbitmq_url) as channel:
            await channel.queue_delete(topology.prefetch_name(GROUP, topic))
        member = await broker.subscribe(GROUP, [topic])
        found: list[Delivery] = []

        async def some(found: list[Delivery] = found, member: Any = member) -> bool:
            found.extend(await member.take(50, 0.2))
            return len(found) >= 20

        await eventually(some, what="some are here")
        await member.aclose()
        assert int(found[0].message.payload or b"") == (20 if number == 2 else 0)
