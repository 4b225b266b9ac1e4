"""Databases with held keys, made by a real relay engine and a real consumer, for tests of what people do to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from relevo import Backoff, Consumer, Event
from relevo.message import Message
from relevo.outcome import Rejected
from tests.support.consumers import insert, make_effects, order, running, settled
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import FakePublisher, Store, running_relay
from tests.support.waiting import eventually


def billing(bad: set[int], tried: Counter[int] | None = None, **options: Any) -> Consumer:
    """A consumer whose handler fails for the numbers in ``bad`` and writes an effect for the others."""
    retry = Backoff(attempts=1, base=timedelta(milliseconds=1), cap=timedelta(milliseconds=20))
    consumer = Consumer("billing", ["shop.order"], retry=retry, **options)

    @consumer.on(OrderPlaced)
    def charge(event: Event[OrderPlaced], tx: Any) -> None:
        if tried is not None:
            tried[event.data.order_id] += 1
        if event.data.order_id in bad:
            raise ValueError(f"no price for {event.data.order_id}")
        insert(tx, event.data.order_id)

    return consumer


async def park_at_consumer(store: Store, numbers: Sequence[tuple[str, int]], bad: set[int]) -> FakeBroker:
    """``numbers``: (key, number) as they arrive. Afterwards the keys of the bad ones are parked with what followed."""
    make_effects(store)
    broker = FakeBroker()
    for key, number in numbers:
        broker.append(order(number, key))
    async with running(billing(bad), store, broker):
        await settled(broker)
    return broker


async def drain_at_consumer(store: Store, broker: FakeBroker, bad: set[int]) -> None:
    """Run the consumer until nothing is left to drain."""
    async with running(billing(bad), store, broker):
        await eventually(
            lambda: store.query("select count(*) from relevo_held_key where state <> 'parked'") == [(0,)],
            what="nothing drains any more",
        )
        await settled(broker)


async def park_at_relay(store: Store, count: int, keys: int, bad: set[int]) -> None:
    """Rows of ``count`` messages; the broker refuses the payloads in ``bad``."""

    def answer(message: Message) -> Rejected | None:
        return Rejected("too_large", "too large") if int(message.payload or b"0") in bad else None

    store.fill(count, keys=keys)
    async with running_relay(store, FakePublisher(answer)):
        await eventually(lambda: store.unsettled() == 0, what="settled or held")
