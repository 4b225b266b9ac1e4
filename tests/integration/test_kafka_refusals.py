"""What Kafka itself refuses, after our own checks let it pass."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import threading
import time
from typing import Any

import msgspec
import pytest

from relevo import wire
from relevo.brokers import broker_for
from relevo.brokers.kafka.sender import Kind
from relevo.brokers.kafka.sizes import record_bytes
from relevo.message import Message
from relevo.outcome import Accepted, Rejected, Unavailable, Unconfirmed
from relevo.testing.broker_processes import make_message
from tests.support.kafka_topics import arrived
from tests.support.stacks import set_config

SOURCE = "urn:relevo:test"


@pytest.fixture
async def topic(kafka_url: str) -> str:
    name = f"refusals.{secrets.token_hex(8)}"
    await broker_for(kafka_url, {"partitions": 1}).ensure_topics([name])
    return name


async def test_nothing_passes_what_the_broker_refuses(kafka_url: str, topic: str) -> None:
    """FAILURES row 10, its sibling: the topic's limit was lowered after we had read it, so the refusal comes from the
    broker with later messages of the key in flight, in other batches and calls. None of them gets past it; the refused
    one is told apart from its innocent batch; afterwards the same publisher works and fits its batches to the limit."""
    publisher = await broker_for(kafka_url, {"batch.size": 20_000}).publisher(source=SOURCE)
    try:
        begin = make_message(topic, key=b"k")
        assert await publisher.publish([begin]) == {}
        set_config(kafka_url, topic, "max.message.bytes", "10000")
        huge = make_message(topic, key=b"k", payload=b"x" * 50_000)
        later = [make_message(topic, key=b"k", payload=b"y" * 300) for _ in range(200)]
        calls = [[huge, *later[:100]], later[100:150], later[150:]]
        rejected: Rejected | None = None
        deadline = time.monotonic() + 30
        while rejected is None:  # in the second round at the latest, when it is sent alone
            assert time.monotonic() < deadline
            first, *others = await asyncio.gather(*[publisher.publish(call) for call in calls])
            assert set(first) == set(range(101))
            assert all(set(outcomes) == set(range(50)) for outcomes in others)
            outcomes = [first[index] for index in range(1, 101)]
            outcomes += [outcome for call in others for outcome in call.values()]
            assert [outcome for outcome in outcomes if not isinstance(outcome, Unconfirmed)] == []
            if isinstance(first[0], Rejected):
                rejected = first[0]
        assert rejected.code == "message_too_large"
        assert await publisher.publish(later) == {}
        expected = [message.event_id for message in [begin, *later]]
        assert await arrived(kafka_url, topic, later[-1]) == expected
    finally:
        await publisher.aclose()


async def test_nothing_passes_the_first_message_of_a_new_producer(kafka_url: str, topic: str) -> None:
    """The same where the broker has stored nothing of this producer yet, so that it would take any sequence number."""
    huge = make_message(topic, key=b"k", payload=b"x" * 50_000)
    later = [make_message(topic, key=b"k", payload=b"y" * 300) for _ in range(200)]
    others = [make_message(topic, key=b"o%d" % number) for number in range(50)]
    publisher = await broker_for(kafka_url, {"batch.size": 5_000}).publisher(source=SOURCE)
    try:
        assert (await publisher.probe(topic)) == Accepted()  # the limit is known, and lowered afterwards
        set_config(kafka_url, topic, "max.message.bytes", "10000")
        outcomes = await publisher.publish([huge, *later, *others])
        assert all(isinstance(outcomes[index], Unconfirmed | Rejected) for index in range(201)), outcomes
        assert isinstance((await publisher.publish([huge]))[0], Rejected)
        assert await publisher.publish(others) == {}
        assert not {message.event_id for message in later} & set(await arrived(kafka_url, topic, others[-1]))
    finally:
        await publisher.aclose()


@pytest.mark.parametrize(("gapless", "in_flight"), [(False, 5), (False, 1), (True, 5), (True, 1)])
async def test_why_the_client_runs_gapless(kafka_url: str, topic: str, gapless: bool, in_flight: int) -> None:
    """The client alone, without our purge: after a refusal by the broker an idempotent producer delivers the later
    messages of the partition all the same; in gapless mode it delivers none, once the partition has stored a message
    of this producer. (Before that the second batch is stored now and then: the broker takes any sequence number from
    one it does not know yet. Hence the publisher's first contact.)"""
    from confluent_kafka import KafkaException, Producer

    set_config(kafka_url, topic, "max.message.bytes", "10000")
    config = {
        "bootstrap.servers": kafka_url.removeprefix("kafka://"),
        "enable.idempotence": True,
        "enable.gapless.guarantee": gapless,
        "max.in.flight.requests.per.connection": in_flight,
        "message.max.bytes": 100_000_000,
        "batch.size": 5_000,
    }
    producer = Producer(config, logger=logging.getLogger("test.client"))
    delivered: list[int] = []

    def report(number: int, error: Any, _message: Any) -> None:
        if error is None:
            delivered.append(number)

    producer.produce(topic, b"", b"k", on_delivery=functools.partial(report, -1))
    while not delivered:
        producer.poll(0.1)
    delivered.clear()
    producer.produce(topic, b"x" * 50_000, b"k", on_delivery=functools.partial(report, 0))
    with contextlib.suppress(KafkaException):  # fatal, as gapless mode says; also in the polling below
        for number in range(1, 200):
            producer.produce(topic, b"y" * 300, b"k", on_delivery=functools.partial(report, number))
    deadline = time.monotonic() + 20
    while len(producer) and time.monotonic() < deadline:
        try:
            producer.poll(0.1)
        except KafkaException:
            producer.purge()
    assert len(producer) == 0
    assert delivered == ([] if gapless else list(range(1, 200)))


async def test_a_topic_with_a_small_limit(kafka_url: str, topic: str) -> None:
    """A batch counts as one for the limit: thousands of small messages fit a topic that takes 5,000 bytes."""
    set_config(kafka_url, topic, "max.message.bytes", "5000")
    publisher = await broker_for(kafka_url).publisher(source=SOURCE)
    try:
        messages = [make_message(topic, key=b"k", payload=b"z" * 100) for _ in range(2000)]
        messages.insert(5, huge := make_message(topic, payload=b"x" * 6000))
        outcomes = await publisher.publish(messages)
        assert set(outcomes) == {5}
        assert isinstance(outcomes[5], Rejected)
        messages.remove(huge)
        assert await arrived(kafka_url, topic, messages[-1]) == [message.event_id for message in messages]
    finally:
        await publisher.aclose()


async def test_the_largest_message_that_fits(kafka_url: str, topic: str) -> None:
    """What our arithmetic lets pass at the limit the broker takes too; a byte more is refused before it is sent."""
    limit = 20_000
    set_config(kafka_url, topic, "max.message.bytes", str(limit))

    def of_size(size: int) -> Message:
        message = make_message(topic, key=b"k", payload=b"", headers={"name": "välue"})
        room = size - record_bytes(message, wire.encode(message, SOURCE.encode()))
        return msgspec.structs.replace(message, payload=b"x" * room)

    publisher = await broker_for(kafka_url).publisher(source=SOURCE)
    try:
        assert await publisher.publish([of_size(limit)]) == {}
        outcomes = await publisher.publish([of_size(limit + 1)])
        assert isinstance(outcomes[0], Rejected)
    finally:
        await publisher.aclose()


async def test_a_record_the_broker_finds_invalid(kafka_url: str, topic: str) -> None:
    """A compacted topic takes no message without a key. That one is rejected; its neighbours go again and arrive."""
    set_config(kafka_url, topic, "cleanup.policy", "compact")
    publisher = await broker_for(kafka_url).publisher(source=SOURCE)
    try:
        messages = [make_message(topic, key=b"%d" % number) for number in range(10)]
        bad = make_message(topic)
        sending: list[Message] = [*messages[:5], bad, *messages[5:]]
        outcome: Any = None
        deadline = time.monotonic() + 30
        while sending:
            assert time.monotonic() < deadline
            outcomes = await publisher.publish(sending)
            for index, result in outcomes.items():
                if sending[index] is bad:
                    outcome = result
                else:
                    assert isinstance(result, Unconfirmed), result
            sending = [message for index, message in enumerate(sending) if isinstance(outcomes.get(index), Unconfirmed)]
        assert isinstance(outcome, Rejected)
        assert outcome.code == "invalid_record"
        assert set(await arrived(kafka_url, topic, messages[-1])) == {message.event_id for message in messages}
    finally:
        await publisher.aclose()


async def test_a_cancelled_publish_keeps_its_place(kafka_url: str, topic: str) -> None:
    """Cancelling a call that was handed over does not let a later one of the same key overtake it."""
    publisher = await broker_for(kafka_url).publisher(source=SOURCE)
    try:
        first = [make_message(topic, key=b"k") for _ in range(1000)]
        second = [make_message(topic, key=b"k") for _ in range(10)]
        one = asyncio.create_task(publisher.publish(first))
        two = asyncio.create_task(publisher.publish(second))
        await asyncio.sleep(0)  # both have begun
        one.cancel()
        assert await two == {}
        with pytest.raises(asyncio.CancelledError):
            await one
        expected = [message.event_id for message in [*first, *second]]
        assert await arrived(kafka_url, topic, second[-1]) == expected
    finally:
        await publisher.aclose()


async def test_more_than_the_client_can_hold(kafka_url: str, topic: str) -> None:
    """With a full client queue publish waits for room, and the event loop goes on."""
    publisher = await broker_for(kafka_url, {"queue.buffering.max.messages": 100}).publisher(source=SOURCE)
    try:
        messages = [make_message(topic, key=b"k") for _ in range(3000)]
        publishing = asyncio.create_task(publisher.publish(messages))
        turns = 0
        while not publishing.done():
            turns += 1
            await asyncio.sleep(0.001)
        assert await publishing == {}
        assert turns > 5
        assert await arrived(kafka_url, topic, messages[-1]) == [message.event_id for message in messages]
    finally:
        await publisher.aclose()


async def test_closing_while_the_first_producer_is_made_leaves_none_behind() -> None:
    before = {thread.ident for thread in threading.enumerate()}
    publisher: Any = await broker_for("kafka://127.0.0.1:9").publisher(source=SOURCE)
    ready = asyncio.create_task(publisher._producers.ready({}, 1, one_by_one=False))
    await asyncio.sleep(0)  # it is being made
    await publisher.aclose()
    assert await ready is None
    assert not [thread for thread in threading.enumerate() if thread.ident not in before and "kafka" in thread.name]


async def test_closing_while_a_successor_is_made_leaves_no_producer_behind() -> None:
    """In an outage the next producer is made before the broker is back; closing meanwhile ends that one, too."""
    before = {thread.ident for thread in threading.enumerate()}
    publisher: Any = await broker_for("kafka://127.0.0.1:9").publisher(source=SOURCE)
    producers = publisher._producers
    make = producers._made
    producers._working = sender = await make(Kind(10_000, one_by_one=False, patient=False))
    producers._resting = await make(sender.kind.other)
    closing: list[asyncio.Task[None]] = []

    async def closed_meanwhile(kind: Kind) -> object:
        closing.append(asyncio.create_task(publisher.aclose()))
        await asyncio.sleep(0)  # it has begun
        return await make(kind)

    producers._made = closed_meanwhile
    producers.give_up(sender, Unavailable("away"))
    await asyncio.wait(producers._replacing)
    await closing[0]
    left = [thread.name for thread in threading.enumerate() if thread.ident not in before]
    assert "relevo-kafka-producer" not in left
    assert producers._working is producers._resting is None
    assert await producers.ready({}, 1, one_by_one=False) is None  # of a call that waited for its turn meanwhile
