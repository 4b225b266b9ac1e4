"""Take, begin, inbox, handler, commit, settle: on both databases, with the in-memory log."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from relevo import Backoff, Consumer, Event, Reject, Retry
from relevo.errors import UnreachableError
from relevo.message import Message
from tests.support.consumers import (
    FAST,
    effects,
    held,
    inbox,
    insert,
    journal,
    make_effects,
    order,
    queue,
    running,
    settled,
)
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("batched")


@pytest.fixture(autouse=True)
def _effects(store: Store) -> None:
    make_effects(store)


def billing(**options: Any) -> Consumer:
    return Consumer("billing", ["shop.order"], **{"retry": FAST, **options})


async def test_a_message_has_its_effect_and_its_inbox_row_and_is_settled(store: Store) -> None:
    """The plain way: one effect per message, an inbox row with it, and no trace left in journal and held keys."""
    consumer, broker = billing(), FakeBroker()
    seen: list[Event[OrderPlaced]] = []

    @consumer.on(OrderPlaced)
    def reserve(event: Event[OrderPlaced], tx: Any) -> None:
        seen.append(event)
        insert(tx, event.data.order_id)

    messages = [order(number, f"k{number % 3}") for number in range(20)]
    broker.append(*messages)
    async with running(consumer, store, broker):
        await settled(broker)
    assert sorted(effects(store)) == list(range(20))
    assert inbox(store) == {message.event_id: "done" for message in messages}
    assert held(store) == []
    assert journal(store) == []
    first = next(event for event in seen if event.id == messages[0].event_id)
    assert (first.type, first.topic, first.key, first.attempt, first.consumer) == (
        "shop.order.placed",
        "shop.order",
        b"k0",
        1,
        "billing",
    )
    assert (first.aggregate_type, first.aggregate_id, first.replayed) == ("shop.order", "k0", False)


async def test_order_per_key_with_a_retry_in_place(store: Store, batched: bool) -> None:
    """FAILURES row 9. A fails once and is retried: A, then B. Never B, A. Other keys are not held up by it."""
    consumer, broker = billing(), FakeBroker()
    failed: list[int] = []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)
        if event.data.order_id % 3 == 0 and event.attempt == 1:
            failed.append(event.data.order_id)
            raise RuntimeError("once")

    broker.append(*(order(number, "one") for number in range(9)))
    async with running(consumer, store, broker):
        await settled(broker)
    assert (sorted(set(failed)) if batched else failed) == [0, 3, 6]
    assert effects(store) == list(range(9))
    assert held(store) == []


async def test_a_handler_that_writes_and_raises_leaves_nothing(store: Store) -> None:
    """FAILURES row 30. Nothing of the failed attempts remains; after the last one the key is parked with its error."""
    consumer, broker = billing(), FakeBroker()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)
        raise ValueError("no such customer")

    broker.append(order(1), order(2))
    async with running(consumer, store, broker):
        await settled(broker)
    assert effects(store) == []
    assert inbox(store) == {}
    [(state, reason, error_type, attempts)] = held(store)
    assert state == "parked"
    assert "no such customer" in reason
    assert error_type is not None
    assert error_type.startswith("ValueError at tests.integration.test_consumer_basics:")
    assert attempts == FAST.attempts
    assert queue(store) == [1, 2]


async def test_the_error_s_text_is_stored_clean_and_cut(store: Store) -> None:
    """FAILURES row 35. A NUL, a lone surrogate, a password in a URL and a megabyte of text."""
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced]) -> None:
        raise ValueError("a\x00b \ud800 amqp://me:secret@host/ " + "x" * 1_000_000)

    broker.append(order(1))
    async with running(consumer, store, broker):
        await settled(broker)
    [(error, reason)] = store.query("select error, reason from relevo_held_key")
    assert error.startswith("a\\x00b \\ud800 amqp://me:***@host/ xxx")
    assert error.endswith("(cut)")
    assert len(error.encode()) <= 8192
    assert len(reason.encode()) <= 8192


async def test_what_cannot_be_read_is_parked_with_its_reason_and_others_go_on(store: Store) -> None:
    """FAILURES rows 8 and 37. Not JSON, an unknown type, no type, broken framing: each parked with its reason, not
    skipped, not looped; skip_types is the only way to pass one over; the neighbours are handled."""
    consumer, broker = billing(skip_types=["shop.order.viewed"]), FakeBroker()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)

    broker.append(
        order(1, "a", payload=b"{not json"),
        order(2, "b", type="shop.order.unheard"),
        order(3, "c", type=""),
        order(4, "d", type="shop.order.viewed"),
    )
    broker.append(order(5, "e"), malformed="header ce_id is not UTF-8")
    broker.append(order(6, "f"))
    async with running(consumer, store, broker):
        await settled(broker)
    assert effects(store) == [6]
    reasons = {row[2]: row[1] for row in held(store)}
    assert "cannot be decoded" in reasons["UndecodableError"]
    assert "no handler for the type 'shop.order.unheard'" in reasons["NoHandler"]
    assert "no type" in reasons["NoType"]
    assert "ce_id is not UTF-8" in reasons["Malformed"]
    assert {row[0] for row in held(store)} == {"parked"}
    assert len(held(store)) == 4


async def test_retry_and_reject_say_so(store: Store, batched: bool) -> None:
    """Retry(after=…) comes again, with the attempt counted; Reject parks at once; on_rejected='skip' leaves a trace."""
    consumer, broker = billing(), FakeBroker()
    attempts: list[int] = []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        if event.data.order_id == 1:
            attempts.append(event.attempt)
            if event.attempt < 3:
                raise Retry(after=timedelta(milliseconds=5), reason="not yet")
            insert(tx, 1)
        else:
            raise Reject("not ours")

    @consumer.on("shop.order.noted", on_rejected="skip")
    def note(event: Event[Message]) -> None:
        raise Reject("never mind")

    skipped = order(3, "c", type="shop.order.noted")
    broker.append(order(1, "a"), order(2, "b"), skipped)
    async with running(consumer, store, broker):
        await settled(broker)
    assert (sorted(set(attempts)) if batched else attempts) == [1, 2, 3]
    assert effects(store) == [1]
    assert [(row[0], row[1]) for row in held(store)] == [("parked", "not ours")]
    assert inbox(store)[skipped.event_id] == "skipped"


async def test_a_waiting_key_drains_in_order_with_new_arrivals_behind(store: Store) -> None:
    """A slow retry is settled at the broker and waits in the held table; what comes later queues behind it, is never
    overtaken, and the key is live again when the queue is empty. Another key flows meanwhile."""
    often = Backoff(attempts=1000, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=100))
    consumer, broker, go = billing(retry=often, inline_retry_s=0.0), FakeBroker(), threading.Event()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        if event.data.order_id == 1 and not go.is_set():
            raise RuntimeError("not yet")
        insert(tx, event.data.order_id)

    broker.append(order(1, "slow"), order(2, "slow"), order(100, "fast"))
    async with running(consumer, store, broker):
        await settled(broker)
        assert effects(store) == [100]
        assert [row[0] for row in held(store)] in (["waiting"], ["draining"])
        broker.append(order(3, "slow"))
        await settled(broker)
        assert effects(store) == [100]
        assert queue(store) == [1, 2, 3]
        go.set()
        await eventually(lambda: not held(store), what="the key live again")
        broker.append(order(4, "slow"))
        await settled(broker)
    assert effects(store) == [100, 1, 2, 3, 4]
    assert queue(store) == []


async def test_without_order_only_the_message_is_held(store: Store) -> None:
    """order='none', and messages without a key: the one that fails is held alone, the others of its key pass."""
    consumer, broker = billing(order="none", retry=Backoff(attempts=1)), FakeBroker()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        if event.data.order_id in (1, 3):
            raise RuntimeError("bad")
        insert(tx, event.data.order_id)

    bad, keyless = order(1, "k"), order(3, None)
    broker.append(bad, order(2, "k"), keyless, order(4, None))
    async with running(consumer, store, broker):
        await settled(broker)
    assert sorted(effects(store)) == [2, 4]
    rows = store.query("select key, alone from relevo_held_key")
    assert {bytes(row[0]) for row in rows} == {bad.event_id.bytes, keyless.event_id.bytes}
    assert all(row[1] for row in rows)


async def test_a_redelivery_is_recognised(store: Store) -> None:
    """The same message again, and again while its key is parked: no second effect, no second copy."""
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        if event.data.order_id == 2:
            raise RuntimeError("bad")
        insert(tx, event.data.order_id)

    one, two, three = order(1), order(2), order(3)
    broker.append(one, one, two, three, one, two, three)
    async with running(consumer, store, broker):
        await settled(broker)
    assert effects(store) == [1]
    assert queue(store) == [2, 3]


async def test_a_stop_while_the_broker_is_away_is_clean(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker can no longer be told is told by the next delivery: the consumer ends without an error."""
    consumer, broker = billing(), FakeBroker()
    asked: list[int] = []

    async def flush(_: Any) -> None:
        asked.append(1)
        raise UnreachableError("the broker does not answer")

    @consumer.on(OrderPlaced)
    def reserve(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)

    broker.append(order(1, "k"))
    async with running(consumer, store, broker):
        await settled(broker)
        monkeypatch.setattr("tests.support.fake_subscription.FakeSubscription.flush", flush)
    assert asked == [1] and effects(store) == [1]
