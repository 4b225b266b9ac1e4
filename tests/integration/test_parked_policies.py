"""What a team can choose about a message that is given up: park, block, skip, and without order. Both sides."""

from __future__ import annotations

from collections import Counter

import pytest

from relevo.clients import database_for
from relevo.message import Message
from relevo.ops.parked import Operator, redrive
from relevo.outcome import Rejected
from relevo.storage.parking import Selection
from tests.support.consumers import effects, held, inbox, make_effects, order, queue, running, settled
from tests.support.fake_subscription import FakeBroker
from tests.support.parking import billing
from tests.support.poison import everything_is_complete, run_poison
from tests.support.relays import FakePublisher, Store, running_relay
from tests.support.waiting import eventually


async def free(store: Store, **selection: object) -> int:
    database = database_for(store.settings)
    try:
        done = await redrive(database, Selection(**selection), Operator("test"))  # type: ignore[arg-type]
    finally:
        await database.aclose()
    return done.messages


async def test_a_redriven_key_starts_promptly_and_a_second_failure_puts_it_back(store: Store) -> None:
    """FAILURES row 15. Nobody waits for the next restart; the message that fails again parks its key again, with a
    fresh count and the new reason, and what is behind it has not passed."""
    make_effects(store)
    bad, broker = {1, 3}, FakeBroker()
    broker.append(*[order(number, "a") for number in range(1, 5)])
    async with running(billing(bad), store, broker):
        await settled(broker)
        assert queue(store) == [1, 2, 3, 4]
        bad.remove(1)
        assert await free(store, consumer="billing") == 4
        await eventually(lambda: effects(store) == [1, 2], what="1 and 2 are handled", timeout_s=20)
        await eventually(lambda: [row[0] for row in held(store)] == ["parked"], what="parked again")
        [(_, reason, _, attempts)] = held(store)
        assert "no price for 3" in reason and attempts == 1
        assert queue(store) == [3, 4]


@pytest.mark.parametrize("inline_s", [2.0, 0.0])
async def test_block_waits_for_ever_and_parks_nothing(store: Store, inline_s: float) -> None:
    """on_rejected = block at a consumer: the key waits and is tried again without end, in place or in its queue; other
    keys flow; when the cause is gone it goes on by itself, in order."""
    make_effects(store)
    bad, broker, tried = {1}, FakeBroker(), Counter[int]()
    consumer = billing(bad, tried=tried, on_rejected="block", inline_retry_s=inline_s)
    broker.append(order(1, "a"), order(2, "a"), order(3, "b"))
    async with running(consumer, store, broker):
        await eventually(lambda: 3 in effects(store), what="the other key flows")
        await eventually(lambda: tried[1] > 5, what="tried more often than it has attempts", timeout_s=15)
        assert "parked" not in [row[0] for row in held(store)]
        bad.clear()
        await eventually(lambda: sorted(effects(store)) == [1, 2, 3], what="it goes on by itself", timeout_s=15)
    assert [number for number in effects(store) if number < 3] == [1, 2]


async def test_without_order_only_the_one_message_parks_and_is_redriven(store: Store) -> None:
    """order = none: later messages of its key pass; redriven, the one is handled, once."""
    make_effects(store)
    bad, broker = {1}, FakeBroker()
    broker.append(order(1, "a"), order(2, "a"), order(3, "a"))
    async with running(billing(bad, order="none"), store, broker):
        await settled(broker)
        assert sorted(effects(store)) == [2, 3] and queue(store) == [1]
        bad.clear()
        assert await free(store, side="consumer") == 1
        await eventually(lambda: sorted(effects(store)) == [1, 2, 3], what="the one came through")
        await eventually(lambda: held(store) == [], what="live")
    assert set(inbox(store).values()) == {"done"}


async def test_a_message_without_a_key_parks_alone_at_the_relay(store: Store) -> None:
    """Nothing waits behind it, and a redrive sends it."""
    refused = {1}

    def answer(message: Message) -> Rejected | None:
        return Rejected("too_large", "too large") if int(message.payload or b"0") in refused else None

    connection = store.connect()
    for number in range(4):
        store.append(connection, None, number)
    connection.commit()
    connection.close()
    publisher = FakePublisher(answer)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="settled or held")
        assert sorted(publisher.payloads()) == [0, 2, 3]
        assert store.query("select state, count(*) from relevo_held_key group by state") == [("parked", 1)]
        refused.clear()
        assert await free(store, side="relay") == 1
        await eventually(lambda: sorted(publisher.payloads()) == [0, 1, 2, 3], what="sent")
        await eventually(lambda: held(store) == [], what="live")


async def test_skip_at_a_consumer_goes_on_behind_it(store: Store) -> None:
    """FAILURES row 15. on_rejected = skip: given up with a trace in the inbox, the rest of the key handled in order."""
    make_effects(store)
    broker = FakeBroker()
    messages = [order(number, "a") for number in range(1, 4)]
    broker.append(*messages)
    async with running(billing({1}, on_rejected="skip"), store, broker):
        await settled(broker)
    assert effects(store) == [2, 3] and held(store) == []
    assert inbox(store)[messages[0].event_id] == "skipped"


async def test_poison_among_many(store: Store, tmp_path: object) -> None:
    """One key in twenty always fails: every other key is complete and in order, the failed ones are parked whole; after
    the fix and a redrive everything is complete and in order."""
    broker_url = f"embedded:{tmp_path}/broker.db"
    await run_poison(store, broker_url, topic="shop.order", keys=100, events=1000, poison_every=20, timeout_s=60)
    everything_is_complete(store, keys=100, events=1000)


@pytest.mark.soak
async def test_poison_among_a_hundred_thousand(pg_store: Store, kafka_url: str) -> None:
    """One key in 1,000, 100,000 events, PostgreSQL and Kafka."""
    import secrets

    topic = f"poison.{secrets.token_hex(4)}"
    await run_poison(pg_store, kafka_url, topic=topic, keys=5000, events=100_000, poison_every=1000, timeout_s=900)
    everything_is_complete(pg_store, keys=5000, events=100_000)
