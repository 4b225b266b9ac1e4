"""Brokers that are away, refuse, or have no place for a message, seen through a relay on every stack."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import msgspec
import pytest

from relevo import Outbox
from relevo.ops.parked import Operator, redrive
from relevo.outcome import Unavailable
from relevo.relay import service
from relevo.relay.service import Relay
from relevo.settings import Settings, load
from relevo.storage.parking import Selection
from tests.integration.test_held_copies import ODD, odd
from tests.support.relays import Store
from tests.support.stacks import EMBEDDED, KAFKA, RABBITMQ, Stack, Tap, build, in_order
from tests.support.waiting import eventually


async def test_a_topic_that_does_not_exist(stack: Stack) -> None:
    """FAILURES row 18: rejected with that reason, never counted as sent; what there is a topic for goes out."""
    await stack.open()
    stack.store.fill(10, keys=2, topic=stack.topic)
    stack.store.fill(6, keys=2, topic=f"{stack.topic}.gone")
    async with stack.relay():
        await settled(stack.store)
    assert in_order(await stack.read(10), 10, 2) == 0
    assert refused(stack.store) == [("unknown_topic", 2)]
    assert outcomes(stack.store) == {(stack.topic, "published"): 10, (f"{stack.topic}.gone", "held"): 6}


@pytest.mark.parametrize("name", [KAFKA])
async def test_a_topic_that_was_just_created(
    name: str, tmp_path: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers know of a new topic a moment after it was created, a busy one more than a second: what is published to it
    meanwhile waits, and is not parked. Here the topic is created while the relay already asks for it."""
    monkeypatch.setattr("relevo.brokers.kafka.admin.MISSING_S", 60.0)  # creating it may take a slow machine longer
    stack = build(name, tmp_path, request)
    stack.store.fill(10, keys=2, topic=stack.topic)
    async with stack.relay() as relay:
        await eventually(lambda: list(relay.engine.paused()) == [stack.topic], what="paused")
        await stack.open()
        await settled(stack.store)
        assert in_order(await stack.read(10), 10, 2) == 0
    assert refused(stack.store) == []
    assert outcomes(stack.store) == {(stack.topic, "published"): 10}


@pytest.mark.parametrize("name", [RABBITMQ])
async def test_a_topic_without_a_queue(name: str, tmp_path: Any, request: pytest.FixtureRequest) -> None:
    """FAILURES row 18: the exchange is there, and nothing is bound to it. The broker confirms such a message; it is not
    counted as sent."""
    stack = build(name, tmp_path, request)
    await stack.open()
    unbound = f"{stack.topic}.unbound"
    await stack.broker.ensure_topics([unbound])
    stack.store.fill(10, keys=2, topic=stack.topic)
    stack.store.fill(6, keys=2, topic=unbound)
    async with stack.relay():
        await settled(stack.store)
    assert in_order(await stack.read(10), 10, 2) == 0
    assert refused(stack.store) == [("unroutable", 2)]
    assert outcomes(stack.store) == {(stack.topic, "published"): 10, (unbound, "held"): 6}


async def test_the_broker_s_file_is_locked_for_a_while(tmp_path: Any, request: pytest.FixtureRequest) -> None:
    """FAILURES row 16, on the embedded broker: another program holds its write lock under load. The destination is
    paused and shows it, nothing is parked, no attempt is spent; afterwards all drains in order, each once."""
    stack = build(EMBEDDED, tmp_path, request)
    await stack.open()
    async with stack.relay() as relay:
        stack.store.fill(200, keys=8, topic=stack.topic)
        await settled(stack.store)
        with contextlib.closing(sqlite3.connect(tmp_path / "broker.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            stack.store.fill(200, keys=8, topic=stack.topic, start=200)
            await eventually(lambda: list(relay.engine.paused()) == [stack.topic], what="paused")
            await eventually(
                lambda: stack.store.query("select topic from relevo_destination") == [(stack.topic,)], what="shown"
            )
            assert stack.store.unsettled() == 200
        await settled(stack.store)
    assert stack.store.query("select count(*) from relevo_held_key") == [(0,)]
    assert in_order(await stack.read(400), 400, 8) == 0


class Down:
    """A destination that does not take messages, beside another one at the same broker that does. With one node Kafka
    has no such state, so there the publisher answers in its place."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack = stack
        self.topic = f"{stack.topic}.down"
        self.away = stack.name == KAFKA
        if self.away:
            monkeypatch.setattr(service, "broker_for", lambda *_: self)

    async def begin(self) -> None:
        if not self.away:
            self.stack.options["queue_length_max"] = 1  # each of its queues takes one message
        await self.stack.open(self.topic)

    async def publisher(self, **options: Any) -> Tap:
        return Tap(await self.stack.broker.publisher(**options), self._answer)

    def _answer(self, message: Any) -> Unavailable | None:
        return Unavailable("no leader") if self.away and message.topic == self.topic else None


async def test_one_destination_is_down_and_the_other_flows(pg_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAILURES row 17: a topic without a leader (Kafka) or with full queues (RabbitMQ), and a sound one. The sound one
    flows; readiness names the other and says why; nothing of it is parked, and when it comes back all of it arrives in
    order."""
    stack, down, store = pg_stack, Down(pg_stack, monkeypatch), pg_stack.store
    await stack.open()
    await down.begin()
    store.fill(60, keys=6, topic=down.topic)
    async with Relay(settings(stack)) as relay:
        await eventually(lambda: list(problems(relay)) == [f"destination {down.topic}"], what="shown", timeout_s=60)
        assert not relay.health().ready
        for round_ in range(4):
            store.fill(50, keys=5, topic=stack.topic, start=50 * round_)
            await eventually(lambda: unsettled(store, stack.topic) == 0, what="the other one flows", timeout_s=60)
        assert unsettled(store, down.topic) > 0
        down.away = False
        found = await stack.read(60, down.topic)  # which makes room in the queues
        await eventually(lambda: unsettled(store, down.topic) == 0, what="it came back", timeout_s=60)
        await eventually(lambda: relay.health().ready, what="ready again", timeout_s=60)
    assert store.query("select count(*) from relevo_held_key") == [(0,)]
    in_order(found, 60, 6)
    stack.options.pop("queue_length_max", None)
    in_order(await stack.read(200), 200, 5)


async def test_what_was_held_arrives_as_it_was(stack: Stack) -> None:
    """FAILURES row 22: parked since their topic does not exist, redriven once it does: ids, keys, headers and payloads
    come out of the broker byte for byte as they were given."""
    messages = [msgspec.structs.replace(odd(number), topic=stack.topic) for number in range(len(ODD))]
    with contextlib.closing(stack.store.connect()) as connection:
        for message in messages:
            Outbox().add_message(connection, message)
        connection.commit()
    async with stack.relay() as relay:
        await settled(stack.store)
        assert refused(stack.store) == [("unknown_topic", len(messages))]
        await stack.open()

        async def drained() -> bool:  # a publisher remembers for a moment that the topic does not exist
            await redrive(relay.database, Selection(side="relay"), Operator("ann"))
            return not refused(stack.store)

        await eventually(drained, what="drained", timeout_s=40, every_s=0.3)
    found = {message.event_id: message for message in await stack.read(len(messages))}
    for message in messages:
        assert msgspec.structs.replace(found[message.event_id], created_at=message.created_at) == message


def settings(stack: Stack) -> Settings:
    overrides = {"database.url": stack.store.url, "broker.url": stack.broker_url, "relay.lease_s": 6.0}
    return load(environ={}, overrides=overrides | {"relay.send_timeout_s": 1.5})


def problems(relay: Relay) -> dict[str, str]:
    return relay.health().problems


def refused(store: Store) -> list[tuple[str, int]]:
    return store.query("select error_type, count(*) from relevo_held_key group by error_type")  # type: ignore[return-value]


def outcomes(store: Store) -> dict[tuple[str, str], int]:
    rows = store.query("select topic, outcome, count(*) from relevo_outbox group by topic, outcome")
    return {(topic, outcome): count for topic, outcome, count in rows}


def unsettled(store: Store, topic: str) -> int:
    return int(store.query(f"select count(*) from relevo_outbox where settled_at is null and topic = '{topic}'")[0][0])


async def settled(store: Store) -> None:
    await eventually(lambda: store.unsettled() == 0, what="all settled", timeout_s=60, every_s=0.05)
