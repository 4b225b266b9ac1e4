"""The Kafka consumer beyond what every broker does."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from typing import Any

import pytest

from relevo.brokers import broker_for
from relevo.brokers.kafka import commits
from relevo.brokers.kafka.shard import Shard
from relevo.brokers.kafka.subscription import KafkaSubscription
from relevo.brokers.murmur2 import partition_of
from relevo.testing.broker_processes import make_message
from tests.support.spending import least_spent
from tests.support.strangers import kafka as strangers
from tests.support.strangers.corpus import Record
from tests.support.waiting import eventually

SOURCE = "urn:relevo:test"


async def take(member: Any, number: int) -> list[Any]:
    """Exactly ``number`` deliveries."""
    found: list[Any] = []
    deadline = time.monotonic() + 30
    while len(found) < number:
        assert time.monotonic() < deadline, f"{len(found)} of {number} arrived"
        found.extend(await member.take(number - len(found), 0.5))
    return found


async def new_topic(url: str) -> str:
    name = f"subscription.{secrets.token_hex(8)}"
    await broker_for(url).ensure_topics([name])
    return name


async def test_keys_lie_where_java_puts_them(kafka_url: str) -> None:
    """librdkafka's partitioner and ours agree: a key goes to the same partition with both brokers."""
    topic = await new_topic(kafka_url)
    publisher = await broker_for(kafka_url).publisher(source=SOURCE)
    member = await broker_for(kafka_url).subscribe("g-" + topic, [topic])
    try:
        keys = [b"", b"\x00", b"21", b"foobar", *(b"key-%d" % number for number in range(60))]
        assert await publisher.publish([make_message(topic, key=key) for key in keys]) == {}
        for delivery in await take(member, len(keys)):
            assert delivery.shard == f"{topic}/{partition_of(delivery.message.key, 4)}"
    finally:
        await publisher.aclose()
        await member.aclose()


async def test_what_is_held_in_memory_is_bounded(kafka_url: str) -> None:
    """A consumer that takes nothing keeps a bounded number of messages and its shards; later it gets all, in order."""
    topic = await new_topic(kafka_url)
    broker = broker_for(kafka_url, {"buffer_messages": 200})
    publisher = await broker.publisher(source=SOURCE)
    member: Any = await broker.subscribe("g-" + topic, [topic])
    try:
        sent = [make_message(topic, key=b"k") for _ in range(10_000)]
        for start in range(0, 10_000, 2000):
            assert await publisher.publish(sent[start : start + 2000]) == {}
        first = await take(member, 1)
        reader = member._reader
        deadline = time.monotonic() + 20
        while not reader._paused:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        most = 0
        for _ in range(50):
            most = max(most, reader.held[0])
            await asyncio.sleep(0.01)
        assert most <= 200 + 201  # the last poll below the limit brings as many again
        assert member.owns(first[0])
        rest = await take(member, 9_999)
        assert [d.message.event_id for d in first + rest] == [message.event_id for message in sent]
        assert reader.held == (0, 0)
    finally:
        await publisher.aclose()
        await member.aclose()


async def test_the_end_is_where_it_was_when_the_group_began(kafka_url: str) -> None:
    """``from_start=False``, and the first member goes before it settled anything: what came after the group began is
    not skipped (Kafka's own ``latest`` would begin at the new end)."""
    topic = await new_topic(kafka_url)
    broker = broker_for(kafka_url)
    publisher = await broker.publisher(source=SOURCE)
    try:
        assert await publisher.publish([make_message(topic, key=b"k") for _ in range(5)]) == {}
        first = await broker.subscribe("g-" + topic, [topic], from_start=False)
        deadline = time.monotonic() + 20
        while not await first.lag():  # until it is assigned
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert sum((await first.lag()).values()) == 0
        await first.aclose()
        missed = make_message(topic, key=b"k")
        assert await publisher.publish([missed]) == {}
        second = await broker.subscribe("g-" + topic, [topic], from_start=False)
        (delivery,) = await take(second, 1)
        assert delivery.message.event_id == missed.event_id
        await second.aclose()
    finally:
        await publisher.aclose()


async def test_the_newer_group_protocol(kafka_url: str) -> None:
    """KIP-848 (``group.protocol=consumer``): two members share, and what was settled is not delivered again."""
    topic = await new_topic(kafka_url)
    broker = broker_for(kafka_url, {"group.protocol": "consumer"})
    publisher = await broker.publisher(source=SOURCE)
    one = await broker.subscribe("g-" + topic, [topic])
    two = await broker.subscribe("g-" + topic, [topic])
    try:
        deadline = time.monotonic() + 30
        while not (await one.lag() and await two.lag()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        sent = [make_message(topic, key=b"%d" % number) for number in range(40)]
        assert await publisher.publish(sent) == {}
        found: list[Any] = []
        while len(found) < 40:
            assert time.monotonic() < deadline
            for member in (one, two):
                some = await member.take(100, 0.1)
                await member.settle(some)
                found.extend(some)
        assert {d.message.event_id for d in found} == {message.event_id for message in sent}
        await one.flush()
        await two.aclose()
        while len(await one.lag()) < 4:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert sum((await one.lag()).values()) == 0
    finally:
        await publisher.aclose()
        await one.aclose()
        await two.aclose()


async def test_an_idle_member_costs_little(kafka_url: str) -> None:
    """An idle second of waiting takes less than a tenth of a second of this process's time."""
    topic = await new_topic(kafka_url)
    member = await broker_for(kafka_url).subscribe("g-" + topic, [topic])
    try:
        while not await member.lag():
            await asyncio.sleep(0.01)

        async def wait() -> None:
            assert await member.take(1, 1.0) == []

        assert await least_spent(wait, 0.1) < 0.1
    finally:
        await member.aclose()


def test_the_factory_can_go_to_another_process() -> None:
    """``broker_for`` with its arguments is picklable, as the conformance suite asks of a factory."""
    import pickle

    make = pickle.loads(pickle.dumps(functools.partial(broker_for, "embedded:x.db", {})))
    assert make().url == "embedded:x.db"


async def test_a_failed_commit_is_told_once(kafka_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """While a group is shared out anew, every partition's commit fails, with every try: one line, and another one for
    another reason. What failed is asked for again."""
    topic = f"kafka.{secrets.token_hex(8)}"
    broker = broker_for(kafka_url)
    await broker.ensure_topics([topic])
    member = await broker.subscribe("told", [topic])
    assert isinstance(member, KafkaSubscription)
    with caplog.at_level(logging.WARNING, "relevo.brokers.kafka"):
        for partition in (0, 1, 2, 3, 0, 1):
            member.committed([(topic, partition, 5, None)], "ILLEGAL_GENERATION: the group moved on")
        member.committed([(topic, 0, 5, None)], "_TRANSPORT: gone")
    await member.aclose()
    told = [record.getMessage() for record in caplog.records if "were not committed" in record.getMessage()]
    assert len(told) == 2 and "ILLEGAL_GENERATION" in told[0] and "_TRANSPORT" in told[1]


async def test_commits_that_fail_for_long_are_a_problem(kafka_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses each commit, since its metadata is longer than ``offset.metadata.max.bytes`` allows. The
    member says so while it lasts, and goes on by itself."""
    monkeypatch.setattr(commits, "ANSWER_S", 0.5)
    topic = await new_topic(kafka_url)
    publisher = await broker_for(kafka_url).publisher(source=SOURCE)
    member = await broker_for(kafka_url).subscribe("g-" + topic, [topic])
    try:
        assert await publisher.publish([make_message(topic, key=b"k")]) == {}
        found = await take(member, 1)
        usual = Shard.place
        with monkeypatch.context() as patch:
            patch.setattr(Shard, "place", property(lambda shard: (*usual.fget(shard)[:3], "x" * 5_000)))  # type: ignore[attr-defined]
            await member.settle(found)
            problem = await eventually(lambda: member.problem, what="it is a problem", timeout_s=30)
            assert "OFFSET_METADATA_TOO_LARGE" in problem and "delivered again" in problem
        await eventually(lambda: member.problem is None, what="it is none any more", timeout_s=30)
        await member.flush()
    finally:
        await publisher.aclose()
        await member.aclose()


async def test_names_of_headers_that_are_not_utf8_end_no_process(kafka_url: str) -> None:
    """Also when very many come: at a method that is called often CPython does not notice that the client raised and
    also returned, a list with holes."""
    topic = await new_topic(kafka_url)
    name, twice = (b"\xff\xfe", b"1"), ((b"\xc3", None), (b"good", b"2"), (b"\xed\xa0\x80", b""))
    records = [
        Record(str(number), "", ((), (name,), (), twice)[number % 4], b"k", b"%d" % number) for number in range(1000)
    ]
    member = await broker_for(kafka_url).subscribe("g-" + topic, [topic])
    try:
        await asyncio.to_thread(strangers.send_all, kafka_url.removeprefix("kafka://"), topic, records)
        found = await take(member, 1000)
    finally:
        await member.aclose()
    assert [delivery.message.payload for delivery in found] == [record.value for record in records]
    for number, delivery in enumerate(found):
        assert (delivery.malformed is None) == (number % 2 == 0)
        assert "UnicodeDecodeError" in (delivery.malformed or "UnicodeDecodeError")


def committed(url: str, group: str, topic: str) -> int:
    """Where the group goes on in the topic's only partition; below 0 where it has no position."""
    from confluent_kafka import Consumer, TopicPartition

    client = Consumer({"bootstrap.servers": url.removeprefix("kafka://"), "group.id": group})
    try:
        return int(client.committed([TopicPartition(topic, 0)], timeout=20)[0].offset)
    finally:
        client.close()


async def noticed(member: Any, *words: str) -> str:
    """The only warning about positions."""
    await eventually(lambda: member.notices, what=f"a notice with {words}", timeout_s=30)
    (text,) = member.notices
    assert all(word in text for word in words), text
    return str(text)


async def test_a_topic_that_is_made_anew_under_a_consumer(kafka_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is not settled of the new log is not committed over, neither by what was
    settled there beyond it nor by what is settled late of the old one; a process that follows gets it."""
    from confluent_kafka.admin import AdminClient

    topic, group = f"anew.{secrets.token_hex(8)}", f"g.{secrets.token_hex(8)}"
    servers, broker = kafka_url.removeprefix("kafka://"), broker_for(kafka_url)
    await asyncio.to_thread(strangers.make_topic, servers, topic)
    publisher = await broker.publisher(source=SOURCE)
    member: Any = await broker.subscribe(group, [topic])
    try:
        await published(publisher, [make_message(topic, key=b"k") for _ in range(200)])
        old = await take(member, 200)
        await member.settle(old[:150])
        await member.flush()
        assert committed(kafka_url, group, topic) == 150
        admin = AdminClient({"bootstrap.servers": servers})
        await asyncio.to_thread(lambda: admin.delete_topics([topic])[topic].result(30))
        await made_again(servers, topic)
        sent = [make_message(topic, key=b"k") for _ in range(20)]
        await published(publisher, sent)
        new = await take(member, 20)
        assert [delivery.message.event_id for delivery in new] == [message.event_id for message in sent]
        assert {delivery.generation for delivery in old}.isdisjoint({delivery.generation for delivery in new})
        text = await noticed(member, f"{topic}/0: ", "made anew", "200")
        assert f"group {group}: {text}" in [record.getMessage() for record in caplog.records]
        await member.settle([*old[150:], *new[:5], *new[7:]])
        await member.flush()
        assert committed(kafka_url, group, topic) == 5
        member._reader._stop.set()  # as a process that is killed: it gives nothing back
        await member.aclose()
        member = await broker.subscribe(group, [topic])
        again = await take(member, 15)
        assert [delivery.message.event_id for delivery in again] == [message.event_id for message in sent[5:]]
    finally:
        await publisher.aclose()
        await member.aclose()


async def made_again(servers: str, topic: str) -> None:
    """A topic that was just deleted exists for a moment longer."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + 30
    while True:
        try:
            return await asyncio.to_thread(strangers.make_topic, servers, topic)
        except KafkaException:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def published(publisher: Any, messages: list[Any]) -> None:
    """Again while the topic made anew is not known."""
    deadline = time.monotonic() + 30
    while left := await publisher.publish(messages):
        assert time.monotonic() < deadline and len(left) == len(messages), left
        await asyncio.sleep(0.05)
