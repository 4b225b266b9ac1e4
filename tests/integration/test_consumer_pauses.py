"""Pauses and durable handlers on the consumer's side, on both databases, with the in-memory log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from relevo import Backoff, Consumer, Event
from relevo.clients import database_for
from relevo.ports.database import Database
from relevo.storage import pausing
from relevo.storage.pausing import Target
from tests.support.consumers import FAST, effects, held, inbox, insert, make_effects, order, queue, running, settled
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.waiting import eventually

CONSUMER = Target("consumer", "billing", consumer="billing")
KEY = Target("key", "k1", topic="shop.order", consumer="billing", key=b"k1")
TOPIC = Target("topic", "shop.order", topic="shop.order")


@pytest.fixture(autouse=True)
def _effects(store: Store) -> None:
    make_effects(store)


@pytest.fixture
async def database(store: Store) -> AsyncIterator[Database]:
    opened = database_for(store.settings)
    yield opened
    await opened.aclose()


def billing(topics: tuple[str, ...] = ("shop.order",), **options: Any) -> Consumer:
    consumer = Consumer("billing", topics, retry=FAST, **options)

    @consumer.on(OrderPlaced)
    def charge(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)

    return consumer


@pytest.mark.parametrize("target", [CONSUMER, TOPIC])
async def test_a_paused_consumer_takes_nothing_and_keeps_its_place(
    store: Store, database: Database, target: Target
) -> None:
    """Paused before the start and while it runs; after each resume it goes on where it was, in order."""
    broker = FakeBroker()
    broker.append(*(order(number) for number in range(10)))
    await database.run(pausing.add(target, "me", "test"))
    async with running(billing(), store, broker) as run:
        (engine,) = run.runner._engines
        assert engine.health().ready and engine.health().detail["paused_by_people"]
        await eventually(lambda: broker.subscriptions[0].paused, what="the fetch is paused")
        assert effects(store) == []
        await database.run(pausing.remove(target, "me", "test"))
        await settled(broker)
        await database.run(pausing.add(target, "me", "test"))
        await eventually(lambda: broker.subscriptions[0].paused, what="it noticed")
        broker.append(*(order(number) for number in range(10, 20)))
        await database.run(pausing.remove(target, "me", "test"))
        await settled(broker)
    assert effects(store) == list(range(20))
    assert held(store) == []


@pytest.mark.parametrize(("target", "topics"), [(KEY, ("shop.order",)), (TOPIC, ("shop.order", "shop.other"))])
async def test_what_is_paused_is_held_and_drained_in_order_on_resume(
    store: Store, database: Database, target: Target, topics: tuple[str, ...]
) -> None:
    """A paused key, or a paused topic among others: its messages stand in the key's queue, not parked, across a
    restart; the other keys go on; resumed, the queue goes first and the key is live."""
    broker = FakeBroker()
    await database.run(pausing.add(target, "me", "test"))
    broker.append(*(order(number, "k1") for number in range(5)))
    async with running(billing(topics), store, broker):
        await settled(broker)
    assert effects(store) == []
    assert held(store) == [("waiting", "paused", None, 0)]
    assert queue(store) == list(range(5))
    broker.append(*(order(number, "k1") for number in range(5, 8)))
    async with running(billing(topics), store, broker):
        await settled(broker)
        assert effects(store) == []
        await database.run(pausing.remove(target, "me", "test"))
        await eventually(lambda: held(store) == [], what="the key is live")
        broker.append(order(8, "k1"))
        await settled(broker)
    assert effects(store) == list(range(9))


async def test_a_pause_stops_a_drain_between_two_messages(store: Store, database: Database) -> None:
    """The key is being drained when somebody pauses it: the message under way is finished, the next is not begun, and
    no attempt is spent."""
    broker = FakeBroker()
    consumer = Consumer("billing", ["shop.order"], retry=FAST)
    pauses = 0

    @consumer.on(OrderPlaced)
    async def charge(event: Event[OrderPlaced], tx: Any) -> None:
        nonlocal pauses
        written = insert(tx, event.data.order_id)
        if written is not None and hasattr(written, "__await__"):
            await written
        if event.data.order_id == 2 and not pauses and store.is_postgres:
            pauses += 1
            await database.run(pausing.add(KEY, "me", "again"))
            await eventually(lambda: run.runner._engines[0]._pauses.all, what="the process noticed")

    await database.run(pausing.add(KEY, "me", "test"))
    broker.append(*(order(number, "k1") for number in range(5)))
    async with running(consumer, store, broker) as run:
        await settled(broker)
        await database.run(pausing.remove(KEY, "me", "test"))
        if store.is_postgres:  # SQLite has one writer: nothing can be paused inside a handler's transaction
            await eventually(lambda: effects(store) == [0, 1, 2], what="the message under way was finished")
            await eventually(lambda: [row[3] for row in held(store)] == [0], what="the claim was given up")
            await database.run(pausing.remove(KEY, "me", "test"))
        await eventually(lambda: held(store) == [], what="the key is live")
    assert effects(store) == list(range(5))


async def test_a_durable_handler_works_from_the_table(store: Store) -> None:
    """Every message is acknowledged while the handler has not even begun; nothing is parked; all are handled once, in
    the order of their key, and the keys are live again."""
    broker = FakeBroker()
    patient = Backoff(attempts=10_000, base=timedelta(milliseconds=5), cap=timedelta(milliseconds=20))
    consumer = Consumer("billing", ["shop.order"], retry=patient, durable=True)
    open_ = False

    @consumer.on(OrderPlaced)
    def charge(event: Event[OrderPlaced], tx: Any) -> None:
        if not open_:
            raise RuntimeError("slow, and failing at first")
        insert(tx, event.data.order_id)

    messages = [order(number, f"k{number % 3}") for number in range(30)]
    broker.append(*messages)
    async with running(consumer, store, broker):
        await settled(broker)
        assert {state for state, *_ in held(store)} <= {"draining", "waiting"}
        open_ = True
        await eventually(lambda: held(store) == [], what="everything was handled")
    found = effects(store)
    for key in range(3):
        assert [number for number in found if number % 3 == key] == list(range(key, 30, 3))
    assert inbox(store) == {message.event_id: "done" for message in messages}


async def test_a_repetition_of_a_stored_message_is_stored_once(store: Store) -> None:
    """The broker delivers again what was stored, before and after it was handled: one effect."""
    broker = FakeBroker()
    first = order(1)
    broker.append(first, first)
    async with running(billing(durable=True), store, broker):
        await settled(broker)
        await eventually(lambda: held(store) == [], what="it was handled")
        broker.append(first)
        await settled(broker)
    assert effects(store) == [1]
    assert held(store) == []
