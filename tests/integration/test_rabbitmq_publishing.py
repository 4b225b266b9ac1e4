"""Publishing to RabbitMQ where it refuses, fills up, or loses connections."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from relevo.brokers import broker_for
from relevo.brokers.rabbitmq import topology
from relevo.clients.aio_pika import close, connect
from relevo.errors import ConfigError, UnreachableError
from relevo.outcome import Accepted, Rejected, Unavailable, Unconfirmed
from relevo.relay.sending import send
from relevo.testing.broker_processes import make_message
from tests.support.cuttable import cuttable
from tests.support.waiting import eventually
from tools.services.rabbitmq import RabbitMQ

SOURCE = "urn:relevo:test"
GROUP = "books"
CTL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")


@pytest.fixture
def rabbitmq_url(each_rabbitmq_url: str) -> str:
    """Every test runs on both servers."""
    return each_rabbitmq_url


@pytest.fixture
async def topic(rabbitmq_url: str) -> str:
    name = f"rabbit.{secrets.token_hex(8)}"
    await broker_for(rabbitmq_url).ensure_topics([name])
    return name


@asynccontextmanager
async def admin(url: str) -> AsyncIterator[Any]:
    connection = await connect(url, timeout_s=5.0, name="test")
    try:
        yield connection
    finally:
        await close(connection)


async def taken(member: Any, found: list[Any], count: int) -> bool:
    deliveries = await member.take(1000, 0.5)
    found.extend(deliveries)
    await member.settle(deliveries)
    return len(found) >= count


async def test_a_full_queue_is_unavailable_and_loses_nothing(rabbitmq_url: str, topic: str) -> None:
    """FAILURES row 16: a queue at its length (``reject-publish``) refuses with a nack: unavailable, no attempt. What
    was accepted arrives, all of it and nothing else; with room again, the rest goes."""
    broker = broker_for(rabbitmq_url, {"queues": 1, "queue_length_max": 5})
    await (await broker.subscribe(GROUP, [topic])).aclose()
    publisher = await broker.publisher(source=SOURCE)
    accepted: list[Any] = []
    refused: list[Any] = []

    async def full() -> bool:
        message = make_message(topic, key=b"k")
        outcome = (await publisher.publish([message])).get(0, Accepted())
        if isinstance(outcome, Accepted):
            accepted.append(message)
        else:
            assert isinstance(outcome, Unavailable), outcome
            refused.append(message)
        return bool(refused)

    await eventually(full, what="the queue is full")
    member = await broker.subscribe(GROUP, [topic])
    found: list[Any] = []
    await eventually(lambda: taken(member, found, len(accepted)), what="what was accepted arrives")

    async def room() -> bool:
        return await publisher.publish(refused) == {}

    await eventually(room, what="there is room again")
    await eventually(lambda: taken(member, found, len(accepted) + len(refused)), what="the rest arrives")
    assert [delivery.message.event_id for delivery in found] == [m.event_id for m in (*accepted, *refused)]
    await publisher.aclose()
    await member.aclose()


async def test_a_topic_deleted_under_the_publisher(rabbitmq_url: str, topic: str) -> None:
    """FAILURES row 18: the exchange goes while the publisher believes it is there. The server closes the channel; what
    was under way is unconfirmed, and then the message is told why: its topic is unknown. The other topic goes on."""
    broker = broker_for(rabbitmq_url)
    other = f"{topic}.other"
    await broker.ensure_topics([other])
    member = await broker.subscribe(GROUP, [topic, other])
    publisher = await broker.publisher(source=SOURCE)
    assert await publisher.publish([make_message(topic), make_message(other)]) == {}
    async with admin(rabbitmq_url) as connection:
        channel = await connection.channel()
        await channel.exchange_delete(topic)
    outcomes = await publisher.publish([make_message(topic)])
    assert isinstance(outcomes[0], Unconfirmed)
    outcomes = await publisher.publish([make_message(topic), make_message(other)])
    assert set(outcomes) == {0}
    assert isinstance(rejected := outcomes[0], Rejected) and rejected.code == "unknown_topic"
    await publisher.aclose()
    await member.aclose()


async def test_too_large(rabbitmq_url: str, topic: str) -> None:
    """A message above the limit is rejected before it is sent; its neighbours go."""
    broker = broker_for(rabbitmq_url, {"message_bytes_max": 10_000})
    assert broker.capabilities.message_bytes_max == 10_000
    member = await broker.subscribe(GROUP, [topic])
    publisher = await broker.publisher(source=SOURCE)
    outcomes = await publisher.publish([make_message(topic), make_message(topic, payload=b"x" * 10_001)])
    assert set(outcomes) == {1}
    assert isinstance(rejected := outcomes[1], Rejected) and rejected.code == "message_too_large"
    await publisher.aclose()
    await member.aclose()


async def test_a_header_that_amqp_has_no_room_for(rabbitmq_url: str, topic: str) -> None:
    """Written by hand, around Relevo's checks: rejected with the reason, not tried for ever; its neighbours go."""
    broker = broker_for(rabbitmq_url, {})
    member = await broker.subscribe(GROUP, [topic])
    publisher = await broker.publisher(source=SOURCE)
    odd = make_message(topic, headers={"x" * 256: "1"})
    outcomes = await publisher.publish([make_message(topic), odd, make_message(topic, headers={"x" * 255: "1"})])
    assert set(outcomes) == {1}
    assert isinstance(rejected := outcomes[1], Rejected) and rejected.code == "cannot_be_encoded"
    await publisher.aclose()
    await member.aclose()


async def test_reconnects_under_load_and_keeps_order(rabbitmq_url: str, topic: str) -> None:
    """FAILURES row 16: connections of publisher and consumer are cut again and again while messages flow. Nothing
    is lost, every key arrives in order, and an acknowledgement of before a cut settles nothing of after it."""
    parts = urlsplit(rabbitmq_url)
    assert parts.hostname and parts.port
    keys = [b"%d" % number for number in range(8)]
    sent: dict[bytes, list[object]] = {key: [] for key in keys}
    seen: dict[bytes, dict[object, None]] = {key: {} for key in keys}
    async with cuttable(parts.hostname, parts.port) as proxy:
        url = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}").geturl()
        broker = broker_for(url, {"member_timeout_s": 2.0})
        member = await broker.subscribe(GROUP, [topic])
        publisher = await broker.publisher(source=SOURCE, send_timeout_s=2.0)
        stop = asyncio.Event()

        async def consume() -> None:
            old: list[Any] = []
            while not stop.is_set():
                try:
                    deliveries = await member.take(100, 0.2)
                except UnreachableError:
                    await asyncio.sleep(0.01)
                    continue
                for delivery in deliveries:
                    assert delivery.message.key is not None
                    seen[delivery.message.key][delivery.message.event_id] = None
                await member.settle(old)  # some of them from before a cut
                old = list(deliveries)
            await member.settle(old)

        consuming = asyncio.create_task(consume())
        for round_number in range(40):
            messages = [make_message(topic, key=key) for _ in range(5) for key in keys]
            for message in messages:
                assert message.key is not None
                sent[message.key].append(message.event_id)
            cutting = asyncio.get_running_loop().call_later(0.002 * (round_number % 5), proxy.cut)

            async def gone(left: list[Any] = messages) -> bool:
                outcomes = await send(publisher, left)
                assert all(isinstance(outcome, Unavailable | Unconfirmed) for outcome in outcomes.values()), outcomes
                left[:] = [left[index] for index in sorted(outcomes)]
                return not left

            await eventually(gone, what="the round went through")
            cutting.cancel()
        expected = sum(map(len, sent.values()))
        await eventually(lambda: sum(map(len, seen.values())) == expected, what="all arrived")
        stop.set()
        await consuming
        assert {key: list(found) for key, found in seen.items()} == sent
        assert proxy.accepted > 10  # it was cut indeed
        await publisher.aclose()
        await member.aclose()


async def test_wrong_password_and_secrets(rabbitmq_url: str) -> None:
    """A refused password is a configuration error, a closed port is unreachable, and neither repeats
    the password."""
    parts = urlsplit(rabbitmq_url)
    wrong = broker_for(f"amqp://relevo:hunter2@{parts.hostname}:{parts.port}/")
    with pytest.raises(ConfigError) as refused:
        await wrong.check()
    away = broker_for("amqp://relevo:hunter2@127.0.0.1:9/")
    with pytest.raises(UnreachableError) as unreachable:
        await away.check()
    publisher = await away.publisher(source=SOURCE)
    outcomes = await publisher.publish([make_message("some.topic")])
    assert isinstance(outcomes[0], Unavailable)
    await publisher.aclose()
    nowhere = broker_for(f"amqp://{parts.username}:{parts.password}@{parts.hostname}:{parts.port}/nowhere")
    with pytest.raises(UnreachableError, match="virtual host"):
        await nowhere.check()
    texts = (str(refused.value), str(unreachable.value), repr(wrong), wrong.url, str(outcomes[0]))
    assert not any("hunter2" in text for text in texts)


@pytest.fixture
def limited_user(rabbitmq_url: str) -> Iterator[tuple[str, str]]:
    """A user who may write to topics that end in ``.mine`` only, on our own RabbitMQ 3.10; its URL and name."""
    server = RabbitMQ()
    if server.given_url is not None or rabbitmq_url != server.url or not CTL.exists():
        pytest.skip("users are made with rabbitmqctl on the RabbitMQ 3.10 of tools.services only")
    name = f"limited-{secrets.token_hex(4)}"

    def ctl(*arguments: str) -> None:
        env = {**os.environ, **server.environment(str(server.folder))}
        done = subprocess.run([CTL, "-q", *arguments], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    ctl("add_user", name, "pass")
    ctl("set_permissions", name, ".*", r".*\.mine$", ".*")
    try:
        yield urlsplit(rabbitmq_url)._replace(netloc=f"{name}:pass@127.0.0.1:{server.port()}").geturl(), name
    finally:
        ctl("delete_user", name)


async def test_a_missing_right_is_found_to_be_one_topic_s(
    rabbitmq_url: str, topic: str, limited_user: tuple[str, str]
) -> None:
    """FAILURES row 18: the server closes the channel on a message it does not allow (403) and takes everything under
    way with it. The next tries find out which message it is: that one is rejected, and its neighbours are accepted."""
    mine = f"{topic}.mine"
    broker = broker_for(rabbitmq_url)
    await broker.ensure_topics([mine])
    member = await broker.subscribe(GROUP, [topic, mine])
    publisher = await broker_for(limited_user[0]).publisher(source=SOURCE)
    left = {message.event_id: message for message in [make_message(mine), make_message(topic), make_message(mine)]}
    rejected: dict[object, Rejected] = {}

    async def decided() -> bool:
        messages = list(left.values())
        outcomes = await publisher.publish(messages)
        for index, message in enumerate(messages):
            outcome = outcomes.get(index, Accepted())
            if isinstance(outcome, Rejected):
                rejected[message.event_id] = outcome
            if isinstance(outcome, Rejected | Accepted):
                del left[message.event_id]
        return not left

    await eventually(decided, what="every message has an outcome")
    assert [outcome.code for outcome in rejected.values()] == ["not_authorised"]
    found: list[Any] = []
    await eventually(lambda: taken(member, found, 2), what="the others arrive")
    assert {delivery.message.topic for delivery in found} == {mine}
    assert not {delivery.message.event_id for delivery in found} & set(rejected)
    await publisher.aclose()
    await member.aclose()


async def test_an_exchange_of_another_kind_is_refused(rabbitmq_url: str) -> None:
    """A topic whose name is taken by a fanout exchange of somebody else's: said in plain words."""
    name = f"rabbit.{secrets.token_hex(8)}"
    async with admin(rabbitmq_url) as connection:
        channel = await connection.channel()
        await channel.exchange_declare(name, exchange_type="fanout", durable=True)
        with pytest.raises(ConfigError, match="another kind"):
            await topology.declare_topic(connection, name)
