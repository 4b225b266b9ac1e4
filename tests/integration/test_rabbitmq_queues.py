"""Queues of a consumer on RabbitMQ: how many, who has them, strangers' messages, deliveries without end."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from typing import Any
from uuid import UUID, uuid4

import pytest

from relevo.brokers import broker_for
from relevo.brokers.rabbitmq import topology
from relevo.brokers.rabbitmq.options import SLOTS
from relevo.brokers.rabbitmq.shard import Shard
from relevo.brokers.rabbitmq.subscription import RabbitSubscription
from relevo.clients.aio_pika import aiormq, close, connect, properties
from relevo.errors import ConfigError
from relevo.outcome import Rejected
from relevo.testing.broker_processes import make_message
from tests.support.waiting import eventually

SOURCE = "urn:relevo:test"
GROUP = "books"


@pytest.fixture
def rabbitmq_url(each_rabbitmq_url: str) -> str:
    """Every test runs on both servers."""
    return each_rabbitmq_url


@pytest.fixture
async def topic(rabbitmq_url: str) -> str:
    name = f"rabbit.{secrets.token_hex(8)}"
    await broker_for(rabbitmq_url).ensure_topics([name])
    return name


async def collect(member: Any, count: int, *, settle: bool = True) -> list[Any]:
    found: list[Any] = []

    async def enough() -> bool:
        deliveries = await member.take(count - len(found), 0.5)
        found.extend(deliveries)
        if settle:
            await member.settle(deliveries)
        return len(found) >= count

    await eventually(enough, what=f"{count} messages")
    return found


async def test_a_cancellation_that_the_client_turns_into_an_error(
    rabbitmq_url: str, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """aiormq answers the cancellation of a call now and then with one of its errors. Whoever was cancelled ends all the
    same: taken for a lost server, it would reconnect for ever while somebody waits for its end."""
    inside = asyncio.Event()

    async def stuck(*_: object) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise aiormq().exceptions.ConnectionChannelError("as aiormq does") from None

    member: Any = await broker_for(rabbitmq_url, {"queues": 2}).subscribe(GROUP, [topic])
    await eventually(lambda: len(member._shards) == 2, what="the queues")
    monkeypatch.setattr(Shard, "undelivered", stuck)
    asking = asyncio.create_task(member.lag())
    await inside.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    inside.clear()
    monkeypatch.setattr(RabbitSubscription, "_balance", stuck)
    member._stir.set()
    await inside.wait()
    async with asyncio.timeout(20):
        await member.aclose()
    assert "reconnecting" not in caplog.text


async def test_another_number_of_queues_is_refused(rabbitmq_url: str, topic: str) -> None:
    """N is recorded when the queues are declared; a later start with another N is told which it was, since messages of
    a key would be in two queues."""
    three = broker_for(rabbitmq_url, {"queues": 3})
    await (await three.subscribe(GROUP, [topic])).aclose()
    for queues in (2, 5):
        with pytest.raises(ConfigError, match=r"has 3 queues.*queues = 3"):
            await broker_for(rabbitmq_url, {"queues": queues}).subscribe(GROUP, [topic])
    await (await three.subscribe(GROUP, [topic])).aclose()


async def test_other_arguments_are_refused(rabbitmq_url: str, topic: str) -> None:
    await (await broker_for(rabbitmq_url).subscribe(GROUP, [topic])).aclose()
    with pytest.raises(ConfigError, match="declared with other arguments"):
        await broker_for(rabbitmq_url, {"queue_length_max": 10}).subscribe(GROUP, [topic])


@pytest.mark.parametrize("queues", [1, 3, SLOTS])
async def test_every_key_has_one_queue(rabbitmq_url: str, topic: str, queues: int) -> None:
    """Whatever N: keys are spread over all queues, each in one, and everything arrives once."""
    broker = broker_for(rabbitmq_url, {"queues": queues})
    member = await broker.subscribe(GROUP, [topic])
    publisher = await broker.publisher(source=SOURCE)
    sent = [make_message(topic, key=b"%d" % (number % 400)) for number in range(800)]
    assert await publisher.publish(sent) == {}
    found = await collect(member, len(sent))
    shards: dict[bytes, set[str]] = defaultdict(set)
    for delivery in found:
        shards[delivery.message.key].add(delivery.shard)
    assert all(len(names) == 1 for names in shards.values())
    assert len({name for names in shards.values() for name in names}) == queues
    assert len({delivery.message.event_id for delivery in found}) == len(sent)
    await publisher.aclose()
    await member.aclose()


async def test_order_while_members_come_and_go(rabbitmq_url: str, topic: str) -> None:
    """Members join and leave with messages in hand; over all members, each key's first deliveries come
    in the order they were sent, and nothing is lost."""
    broker = broker_for(rabbitmq_url, {"prefetch": 20})
    keys = [b"%d" % number for number in range(10)]
    members = [await broker.subscribe(GROUP, [topic])]
    publisher = await broker.publisher(source=SOURCE)
    sent: dict[bytes, list[object]] = {key: [] for key in keys}
    seen: dict[bytes, dict[object, None]] = {key: {} for key in keys}

    async def work(times: int) -> None:
        for _ in range(times):
            for member in members:
                deliveries = await member.take(15, 0.02)
                for delivery in deliveries:
                    seen[delivery.message.key][delivery.message.event_id] = None
                await member.settle(deliveries[: len(deliveries) // 2])
                await member.hand_back(deliveries[len(deliveries) // 2 :])

    for number in range(12):
        messages = [make_message(topic, key=key) for _ in range(5) for key in keys]
        for message in messages:
            sent[message.key or b""].append(message.event_id)
        assert await publisher.publish(messages) == {}
        await work(3)
        if number % 3 == 0:
            members.append(await broker.subscribe(GROUP, [topic]))
        elif number % 3 == 2:
            await members.pop(0).aclose()
    expected = sum(map(len, sent.values()))

    async def all_seen() -> bool:
        await work(1)
        return sum(map(len, seen.values())) == expected

    await eventually(all_seen, what="all arrived", timeout_s=40)
    assert {key: list(found) for key, found in seen.items()} == sent
    await publisher.aclose()
    for member in members:
        await member.aclose()


async def test_a_message_is_never_dropped_for_many_deliveries(rabbitmq_url: str, topic: str) -> None:
    """The delivery limit is set explicitly: RabbitMQ 4 would drop a message after 20 deliveries."""
    broker = broker_for(rabbitmq_url, {"queues": 1})
    publisher = await broker.publisher(source=SOURCE)
    member = await broker.subscribe(GROUP, [topic])
    message = make_message(topic, key=b"k", headers={"note": "same"})
    assert await publisher.publish([message]) == {}
    for number in range(25):
        (delivery,) = await collect(member, 1, settle=False)
        assert delivery.message == message  # the server's own count is not among its headers
        assert delivery.redelivered is (number > 0)
        await member.aclose()
        member = await broker.subscribe(GROUP, [topic])
    await collect(member, 1)
    await publisher.aclose()
    await member.aclose()


async def test_messages_of_strangers(rabbitmq_url: str, topic: str) -> None:
    """Messages without our headers are delivered: by the properties of AMQP and the CloudEvents
    binding's own prefix where they have those, with an id of their own where they have nothing."""
    member = await broker_for(rabbitmq_url).subscribe(GROUP, [topic])
    identity = uuid4()
    connection = await connect(rabbitmq_url, timeout_s=5.0, name="test")
    channel = await connection.channel()
    key = topology.routing_key(7, "shop.order.placed")
    for made in (
        properties(message_id=str(identity), message_type="shop.order.placed", content_type="text/plain"),
        properties(headers={"cloudEvents:id": str(identity), "cloudEvents:type": "a.b", "n": 5, "deep": {"x": [1]}}),
        properties(headers={"ce_partitionkey": "text", "raw": bytearray(b"\xff")}),
    ):
        await channel.basic_publish(b"body", exchange=topic, routing_key=key, properties=made, mandatory=True)
    first, second, third = [delivery.message for delivery in await collect(member, 3)]
    assert (first.event_id, first.type, first.content_type) == (identity, "shop.order.placed", "text/plain")
    assert (first.key, first.payload) == (None, b"body")
    assert (second.event_id, second.type, second.headers["n"]) == (identity, "a.b", "5")
    assert (third.key, third.type) == (b"text", "")
    assert isinstance(third.event_id, UUID)
    await close(connection)
    await member.aclose()


async def test_commands_go_only_where_they_are_handled(rabbitmq_url: str, topic: str) -> None:
    """A command is routed by a direct exchange: to the consumer that handles commands, in order with the events of its
    key, and to nobody else. Without such a consumer it is unroutable."""
    broker = broker_for(rabbitmq_url)
    publisher = await broker.publisher(source=SOURCE)
    events_only = await broker.subscribe("events-only", [topic], commands=False)
    mixed = [make_message(topic, key=b"k", kind="command" if number % 2 else "event") for number in range(6)]
    outcomes = await publisher.publish(mixed)
    assert {index: getattr(outcome, "code", None) for index, outcome in outcomes.items()} == dict.fromkeys(
        (1, 3, 5), "unroutable"
    )
    both = await broker.subscribe(GROUP, [topic])
    assert await publisher.publish(mixed) == {}
    found = [delivery.message for delivery in await collect(both, 6)]
    assert [(m.event_id, m.kind) for m in found] == [(m.event_id, m.kind) for m in mixed]
    seen = [delivery.message.kind for delivery in await collect(events_only, 6)]
    assert seen == ["event"] * 6  # three of each call
    assert sum((await events_only.lag()).values()) == 0
    await publisher.aclose()
    await events_only.aclose()
    await both.aclose()


async def test_long_names_are_refused(rabbitmq_url: str, topic: str) -> None:
    """Exchanges and queues have shorter names than Relevo allows: said before anything is made of them."""
    broker = broker_for(rabbitmq_url)
    with pytest.raises(ConfigError, match="118 are possible"):
        await broker.ensure_topics(["t" * 119])
    with pytest.raises(ConfigError, match="110 characters"):
        await broker.subscribe("c" * 111, [topic])
    publisher = await broker.publisher(source=SOURCE)
    outcomes = await publisher.publish([make_message("t" * 200)])
    assert isinstance(rejected := outcomes[0], Rejected) and rejected.code == "unknown_topic"
    await publisher.aclose()


class NoId(str):
    """aiormq gives a message an id that has none; this one it takes for one, and sends an empty one."""

    def __bool__(self) -> bool:
        return True


@pytest.mark.parametrize("without_id", ["run", "content", "park"])
async def test_strangers_messages_without_an_id(rabbitmq_url: str, topic: str, without_id: str) -> None:
    """One message with ``message_id`` and one without any id are delivered, not settled, and delivered again: the first
    has the same id, the other one a new one, the same one, or is not to be handled, as the option says."""
    broker = broker_for(rabbitmq_url, {"queues": 1, "without_id": without_id})
    member = await broker.subscribe(GROUP, [topic])
    connection = await connect(rabbitmq_url, timeout_s=5.0, name="test")
    channel = await connection.channel()
    key = topology.routing_key(7, "shop.order.placed")
    for made in (properties(message_id="17", app_id="till"), properties(message_id=NoId(), headers={"n": 1})):
        await channel.basic_publish(b"body", exchange=topic, routing_key=key, properties=made, mandatory=True)
    before = await collect(member, 2, settle=False)
    await member.aclose()
    member = await broker.subscribe(GROUP, [topic])
    after = await collect(member, 2)
    assert [delivery.redelivered for delivery in after] == [True, True]
    same = [one.message.event_id == other.message.event_id for one, other in zip(before, after, strict=True)]
    assert same == [True, without_id == "content"]
    assert [delivery.malformed is None for delivery in after] == [True, without_id != "park"]
    await close(connection)
    await member.aclose()
