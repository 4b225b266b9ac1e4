"""Kafka: positions that are gone, or that belong to another log, are noticed."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

from relevo.brokers import broker_for
from relevo.brokers.kafka import watch
from relevo.testing.broker_processes import make_message
from tests.integration.test_kafka_subscription import SOURCE, committed, made_again, noticed, published, take
from tests.support.strangers.kafka import make_topic
from tests.support.waiting import eventually


@pytest.fixture
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The positions are compared many times a second."""
    monkeypatch.setattr(watch, "EVERY_S", 0.2)
    monkeypatch.setattr(watch, "AGAIN_S", 0.05)


def cut(servers: str, topic: str, before: int) -> None:
    """The topic's only partition begins at ``before`` from now on."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    place = TopicPartition(topic, 0, before)
    admin = AdminClient({"bootstrap.servers": servers})
    assert admin.delete_records([place])[place].result(30).low_watermark == before


async def paused(member: Any) -> None:
    """Until its buffer has been full for so long that what the client fetched ahead is thrown away."""
    await eventually(lambda: member._reader._paused, what="the partitions are paused", timeout_s=30)


@pytest.mark.usefixtures("looking_often")
async def test_a_log_that_is_cut_in_front_of_a_consumer(kafka_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """By ``delete_records``, or by retention: under a consumer that runs, before one that starts, and with nothing left
    in it. How many positions are gone is in the log and among the notices; the rest is delivered."""
    topic, group = f"cut.{secrets.token_hex(8)}", f"g.{secrets.token_hex(8)}"
    servers = kafka_url.removeprefix("kafka://")
    broker = broker_for(kafka_url, {"buffer_messages": 10})
    await asyncio.to_thread(make_topic, servers, topic)
    publisher = await broker.publisher(source=SOURCE)
    member: Any = await broker.subscribe(group, [topic])
    try:
        assert await publisher.publish([make_message(topic, key=b"k") for _ in range(500)]) == {}
        found = await take(member, 1)
        await member.settle(found)
        await paused(member)
        await asyncio.to_thread(cut, servers, topic, 300)
        while found[-1].position < 300:
            found = await take(member, 1)
            await member.settle(found)
        text = await noticed(member, f"{topic}/0", "to 299, are gone", "begins at 300")
        lost = int(text.split()[1])
        assert 300 - lost == next(int(word) for word in text.split() if word.isdigit() and word != str(lost))
        assert 250 < lost < 300  # but for what was fetched
        await member.aclose()
        await asyncio.to_thread(cut, servers, topic, 400)
        member = await broker.subscribe(group, [topic])
        found = await take(member, 100)
        assert [delivery.position for delivery in found] == [*range(400, 500)]
        await noticed(member, f"{topic}/0: ", "99 positions, 301 to 399, are gone", "begins at 400")
        await member.settle(found[:50])
        await member.aclose()
        await asyncio.to_thread(cut, servers, topic, 500)
        member = await broker.subscribe(group, [topic])
        await noticed(member, f"{topic}/0: ", "50 positions, 450 to 499, are gone", "begins at 500")
        assert await publisher.publish([make_message(topic, key=b"k")]) == {}
        (last,) = await take(member, 1)
        assert last.position == 500
        warned = [record.getMessage() for record in caplog.records if "are gone" in record.getMessage()]
        assert len(warned) == 3 and all(f"group {group}: {topic}/0: " in text for text in warned)
    finally:
        await publisher.aclose()
        await member.aclose()


@pytest.mark.usefixtures("looking_often")
async def test_a_topic_made_anew_that_has_outgrown_the_position(kafka_url: str) -> None:
    """No offset falls then; the topic's id tells: to a consumer that runs, and to one that starts with a position that
    was committed for the topic before."""
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient

    topic, group = f"outgrown.{secrets.token_hex(8)}", f"g.{secrets.token_hex(8)}"
    servers, broker = kafka_url.removeprefix("kafka://"), broker_for(kafka_url)
    await asyncio.to_thread(make_topic, servers, topic)
    publisher = await broker.publisher(source=SOURCE)
    member: Any = await broker.subscribe(group, [topic])
    try:
        assert await publisher.publish([make_message(topic, key=b"k") for _ in range(20)]) == {}
        await member.settle(await take(member, 20))
        (shard,) = member._shards.values()
        await eventually(lambda: shard.mark is not None, what="the topic's id is known", timeout_s=30)
        old = shard.mark
        admin = AdminClient({"bootstrap.servers": servers})
        await asyncio.to_thread(lambda: admin.delete_topics([topic])[topic].result(30))
        await made_again(servers, topic)
        sent = [make_message(topic, key=b"k") for _ in range(100)]
        await published(publisher, sent)
        wanted, found = {message.event_id for message in sent}, set()
        while found != wanted:
            delivered = await take(member, 1)
            await member.settle(delivered)
            found |= {delivery.message.event_id for delivery in delivered}
        await member.aclose()
        assert committed(kafka_url, group, topic) == 100

        client = Consumer({"bootstrap.servers": servers, "group.id": group})
        for mark, begins_at in ((old, 0), ("another tool's", 40), (old.replace("cluster=", "cluster=x"), 40)):
            place = TopicPartition(topic, 0, 40, metadata=mark)
            await asyncio.to_thread(client.commit, offsets=[place], asynchronous=False)
            member = await broker.subscribe(group, [topic])
            if not begins_at:
                await noticed(member, f"{topic}/0: ", "position 40", "made anew")
            first = await take(member, 1)
            while first[0].position > begins_at:  # what was fetched before it was known
                first = await take(member, 1)
            rest = await take(member, 99 - begins_at)
            assert [delivery.message.event_id for delivery in first + rest] == [
                message.event_id for message in sent[begins_at:]
            ]
            assert bool(member.notices) == (begins_at == 0)
            member._reader._stop.set()  # as a process that is killed: it gives nothing back
            await member.aclose()
        client.close()
    finally:
        await publisher.aclose()
        await member.aclose()
