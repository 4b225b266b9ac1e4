"""One publisher, two producers: a prompt one while the relay follows, a patient one in a backlog."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pytest

from relevo.brokers import broker_for
from relevo.brokers.kafka import producers
from relevo.brokers.kafka.sender import Kind, Sender
from relevo.message import Message
from relevo.outcome import Rejected, Unconfirmed
from relevo.testing.broker_processes import make_message
from tests.support.kafka_topics import arrived
from tests.support.stacks import set_config
from tests.support.waiting import eventually

SOURCE = "urn:relevo:test"


@dataclass
class Watched:
    """A publisher, its topic of one partition, and the producer that each of its calls got."""

    publisher: Any
    topic: str
    senders: list[Sender]

    @property
    def patience(self) -> list[bool]:
        """Whether the producers that worked were patient, in turn."""
        return [patient for patient, _ in groupby(sender.kind.patient for sender in self.senders)]

    def messages(self, count: int) -> list[Message]:
        return [make_message(self.topic, key=b"k") for _ in range(count)]

    async def backlog(self) -> list[Message]:
        """Five pages at once, as from a relay that has a backlog before it."""
        pages = [self.messages(1_000) for _ in range(5)]
        assert await asyncio.gather(*[self.publisher.publish(page) for page in pages]) == [{}] * 5
        return [message for page in pages for message in page]

    async def few(self) -> list[Message]:
        """A page as a relay that follows has it."""
        page = self.messages(3)
        assert await self.publisher.publish(page) == {}
        return page


def options_of(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(getattr(request, "param", {}))


@pytest.fixture
async def watched(kafka_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    topic = f"linger.{secrets.token_hex(8)}"
    await broker_for(kafka_url, {"partitions": 1}).ensure_topics([topic])
    publisher: Any = await broker_for(kafka_url, options_of(request)).publisher(source=SOURCE)
    senders: list[Sender] = []
    ready = publisher._producers.ready

    async def seen(*given: Any, **more: Any) -> Sender:
        senders.append(await ready(*given, **more))
        return senders[-1]

    publisher._producers.ready = seen
    try:
        yield Watched(publisher, topic, senders)
    finally:
        await publisher.aclose()


async def test_a_backlog_is_sent_patiently_and_what_follows_promptly(kafka_url: str, watched: Watched) -> None:
    """From the first to the other and back, twice, in order; there are never more than two of them."""
    sent = [*await watched.few(), *await watched.backlog(), *await watched.few(), *await watched.few()]
    sent += [*await watched.backlog(), *await watched.few()]
    assert watched.patience == [False, True, False, True, False]
    assert len({id(sender) for sender in watched.senders}) == 2
    assert await arrived(kafka_url, watched.topic, sent[-1]) == [message.event_id for message in sent]


@pytest.mark.parametrize("seed", range(3))
async def test_calls_of_all_sizes_at_once_stay_in_order(kafka_url: str, watched: Watched, seed: int) -> None:
    """Calls that begin while others are under way, some of which change the producer, and pauses between them."""
    chance = random.Random(seed)
    sent: list[Message] = []
    calls: list[asyncio.Task[Any]] = []
    for _ in range(60):
        page = watched.messages(chance.choice((1, 2, 5, 40, 300, 900)))
        sent += page
        calls.append(asyncio.create_task(watched.publisher.publish(page)))
        if chance.random() < 0.3:
            await calls[chance.randrange(len(calls))]
    assert await asyncio.gather(*calls) == [{}] * len(calls)
    assert {sender.kind.patient for sender in watched.senders} == {False, True}
    assert await arrived(kafka_url, watched.topic, sent[-1]) == [message.event_id for message in sent]


@pytest.mark.parametrize("watched", [{"linger.ms": 1}, {"queue.buffering.max.ms": 1}], indirect=True)
async def test_who_says_how_long_to_linger_has_one_producer(watched: Watched) -> None:
    await watched.few()
    await watched.backlog()
    assert len({id(sender) for sender in watched.senders}) == 1


@pytest.mark.parametrize("watched", [{"batch.size": 20_000}], indirect=True)
async def test_a_refusal_in_a_backlog(kafka_url: str, watched: Watched) -> None:
    """What the broker refuses of the patient producer stops what is behind it, as it does of the prompt one; then the
    refused message is sent alone, and its successors by a producer that fits its batches to the topic."""
    begin = [*await watched.few(), *await watched.backlog()]
    set_config(kafka_url, watched.topic, "max.message.bytes", "10000")
    huge = make_message(watched.topic, key=b"k", payload=b"x" * 50_000)
    pages = [[huge, *watched.messages(999)], *[watched.messages(1_000) for _ in range(3)]]
    refused: Any = Unconfirmed("")
    while isinstance(refused, Unconfirmed):  # in the second round at the latest
        first, *others = await asyncio.gather(*[watched.publisher.publish(page) for page in pages])
        refused = first.pop(0)
        outcomes = [outcome for found in (first, *others) for outcome in found.values()]
        assert len(outcomes) == 3_999
        assert [outcome for outcome in outcomes if not isinstance(outcome, Unconfirmed)] == []
    assert isinstance(refused, Rejected)
    assert True in watched.patience
    rest = [message for page in pages for message in page if message is not huge]
    assert await watched.publisher.publish(rest) == {}
    assert await arrived(kafka_url, watched.topic, rest[-1]) == [message.event_id for message in [*begin, *rest]]


async def test_one_that_fails_while_it_rests_is_not_used_again(kafka_url: str, watched: Watched) -> None:
    sent = [*await watched.few(), *await watched.backlog(), *await watched.few()]
    resting = watched.publisher._producers._resting
    assert resting.kind.patient
    watched.publisher._producers._fatal(resting, "a test")  # as its thread would say it
    await eventually(lambda: watched.publisher._producers._resting is None, what="it is put away")
    assert resting.broken is not None
    sent += [*await watched.backlog(), *await watched.few()]
    assert resting not in watched.senders[-3:]
    assert await arrived(kafka_url, watched.topic, sent[-1]) == [message.event_id for message in sent]


async def test_of_a_change_of_the_topics_limit_no_producer_is_left(kafka_url: str, watched: Watched) -> None:
    """Both are made for a batch size; when it has to be smaller, neither is kept."""
    await watched.few()
    await watched.backlog()
    await watched.few()
    old = {watched.publisher._producers._working, watched.publisher._producers._resting}
    assert {sender.kind for sender in old} == {Kind(producers.BATCH_BYTES, False, each) for each in (False, True)}
    small = f"{watched.topic}.small"
    await broker_for(kafka_url, {"partitions": 1}).ensure_topics([small])
    set_config(kafka_url, small, "max.message.bytes", "10000")
    assert await watched.publisher.publish([make_message(small, key=b"k")]) == {}
    assert watched.publisher._producers._working.kind == Kind(5_000, one_by_one=False, patient=False)
    assert watched.publisher._producers._resting is None
    assert all(sender.producer is None for sender in old)
