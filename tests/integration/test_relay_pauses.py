"""Pauses on the relay's side: what is paused waits, everything else flows, and nothing is lost or swapped by it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from relevo.clients import database_for
from relevo.ids import bucket_of, uuid7
from relevo.outcome import Unconfirmed
from relevo.sources.mark.source import MarkSource
from relevo.storage import laning, pausing
from relevo.storage.pausing import Target
from tests.support.relays import FakePublisher, Running, Store, running_relay
from tests.support.waiting import eventually


async def pause(store: Store, target: Target, *, resume: bool = False) -> pausing.Pauses:
    database = database_for(store.settings)
    try:
        act = pausing.remove if resume else pausing.add
        assert await database.run(act(target, "me@here", "a test"))
        return await database.run(pausing.load(), read_only=True)
    finally:
        await database.aclose()


async def look(running: Running) -> None:
    running.engine.take_pauses(await running.database.run(pausing.load(), read_only=True))


@pytest.mark.parametrize("kind", ["destination", "topic"])
async def test_a_paused_destination_waits_and_the_others_flow(store: Store, kind: Any) -> None:
    """Everything of the other topic goes out, nothing of the paused one; resumed, it goes out in order; without a
    probe, and nothing twice."""
    target = Target(kind, "shop.slow", topic="shop.slow")
    pauses = await pause(store, target)
    async with running_relay(store, pauses=pauses) as running:
        store.fill(300, topic="shop.slow")
        store.fill(300, topic="shop.fast")
        await eventually(lambda: len(running.publisher.log) >= 300, what="the other topic was sent")
        assert {message.topic for message in running.publisher.log} == {"shop.fast"}
        assert list(running.engine.paused()) == ["shop.slow"]
        await pause(store, target, resume=True)
        await look(running)
        await eventually(lambda: store.unsettled() == 0, what="the resumed topic was sent")
        slow = [int(m.payload or b"") for m in running.publisher.log if m.topic == "shop.slow"]
        assert slow == list(range(300))
        assert len(running.publisher.log) == 600


async def test_nothing_is_sent_again_by_a_relay_that_starts_into_a_pause(store: Store) -> None:
    """Half is sent, the relay goes, another one starts while the topic is still paused: it sends the rest of the other
    topic only, and after the resume every message was sent once."""
    pauses = await pause(store, Target("destination", "shop.slow", topic="shop.slow"))
    publisher = FakePublisher()
    for start in (0, 100):
        async with running_relay(store, publisher, pauses=pauses):
            store.fill(100, topic="shop.slow", start=start)
            store.fill(100, topic="shop.fast", start=start)
            sent = start + 100
            await eventually(lambda sent=sent: len(publisher.log) >= sent, what="the other topic was sent")
    assert {message.topic for message in publisher.log} == {"shop.fast"}
    await pause(store, Target("destination", "shop.slow", topic="shop.slow"), resume=True)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="everything was sent")
    assert len(publisher.log) == len({message.event_id for message in publisher.log}) == 400


async def test_a_paused_lane_is_kept_and_not_read(store: Store) -> None:
    """Keys of other lanes go out; the lane stays ours; resumed, its keys go out in order."""
    lane = bucket_of(b"k3", uuid7()) % 64
    pauses = await pause(store, Target("lane", str(lane), lane=lane))
    async with running_relay(store, pauses=pauses) as running:
        store.fill(200, keys=10)
        others = sum(1 for number in range(200) if bucket_of(b"k%d" % (number % 10), uuid7()) % 64 != lane)
        await eventually(lambda: len(running.publisher.log) >= others, what="the other lanes were sent")
        assert running.publisher.payloads(b"k3") == []
        assert lane in running.engine.ownership.lanes
        await pause(store, Target("lane", str(lane), lane=lane), resume=True)
        await look(running)
        await eventually(lambda: store.unsettled() == 0, what="the lane was sent")
        assert running.publisher.payloads(b"k3") == list(range(3, 200, 10))


async def test_a_paused_key_is_held_by_its_owner_and_drained_in_order(store: Store) -> None:
    """Live to held is the owner's act. While the key waits it is not parked; resumed, its queue goes out first and the
    key is live again."""
    target = Target("key", "k3", topic="shop.order", key=b"k3")
    pauses = await pause(store, target)
    async with running_relay(store, pauses=pauses) as running:
        store.fill(100, keys=10)
        await eventually(lambda: store.unsettled() == 0, what="the other keys were sent, this one was held")
        assert running.publisher.payloads(b"k3") == []
        assert store.query("select state, reason, error_type from relevo_held_key") == [("waiting", "paused", None)]
        await pause(store, target, resume=True)
        await look(running)
        store.fill(100, keys=10, start=100)
        await eventually(lambda: not store.query("select 1 from relevo_held_key"), what="the key was drained")
        await eventually(lambda: store.unsettled() == 0, what="everything was sent")
        assert running.publisher.payloads(b"k3") == list(range(3, 200, 10))


async def test_a_pause_is_audited_and_made_once(store: Store) -> None:
    """A second pause of the same thing changes nothing; pause and resume each leave a row that says who and why."""
    target = Target("consumer", "billing", consumer="billing")
    database = database_for(store.settings)
    with contextlib.closing(store.connect()):
        assert await database.run(pausing.add(target, "ann@host", "the bank is closed"))
        assert not await database.run(pausing.add(target, "bob@host", "me too"))
        pauses = await database.run(pausing.load(), read_only=True)
        assert [(each.who, each.why) for each in pauses.all] == [("ann@host", "the bank is closed")]
        assert pauses.consumers == {"billing"}
        assert await database.run(pausing.remove(target, "bob@host", "open again"))
        assert not await database.run(pausing.remove(target, "bob@host", "open again"))
    await database.aclose()
    rows = store.query("select actor, action, reason from relevo_audit order by audit_id")
    assert rows == [
        ("ann@host", "consumer.pause", "the bank is closed"),
        ("bob@host", "consumer.resume", "open again"),
    ]


async def test_pauses_that_change_while_the_last_page_is_settled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look comes while pages are under way, the next while the last of them is being settled: the newer counts, and
    the relay goes on."""
    store.fill(20)
    refused = [15]
    publisher = FakePublisher(
        lambda message: Unconfirmed("no word") if int(message.payload or b"") in refused else None
    )
    slow = Target("destination", "shop.slow", topic="shop.slow")
    paused = await pause(store, slow)
    nothing = await pause(store, slow, resume=True)
    async with running_relay(store, publisher, batch_max=10) as running:
        engine = running.engine
        take, settle = engine.source.take, engine.source.settle
        waiting = [nothing, paused]

        async def taking(*arguments: Any, **named: Any) -> Any:
            taken = await take(*arguments, **named)
            if engine.flight and len(waiting) == 2:
                engine.take_pauses(waiting.pop())
            return taken

        async def settling(taken: Any, dispositions: Any) -> Any:
            if dispositions and not engine.flight and waiting:
                refused.clear()
                engine.take_pauses(waiting.pop())
            return await settle(taken, dispositions)

        monkeypatch.setattr(engine.source, "take", taking)
        monkeypatch.setattr(engine.source, "settle", settling)
        await eventually(lambda: running.task.done() or store.unsettled() == 0, what="everything was sent")
        assert not running.task.done()
        assert not waiting and not engine.paused()


async def test_a_topic_that_is_back_is_read_from_its_oldest_message_while_pages_are_in_flight(store: Store) -> None:
    """FAILURES row 16: what waited while its topic was away comes before what was written meanwhile, also when pages of
    other topics are still with the broker."""
    store.fill(4, keys=1, topic="shop.slow")
    store.fill(4, keys=1, topic="shop.fast")
    store.fill(4, keys=1, topic="shop.slow", start=4)
    database = database_for(store.settings)
    relay_id = uuid7()
    lanes = await database.run(laning.acquire(relay_id, list(range(64)), 60.0))
    source = MarkSource(database, relay_id, 64, lease_s=60.0)
    await source.assign(lanes)
    flying = await source.take(3, 10**6, without_topics=["shop.slow"])
    assert list(flying.seqs) == [5, 6, 7]
    found = [await source.take(4, 10**6) for _ in range(3)]
    assert [list(taken.seqs) for taken in found] == [[1, 2, 3, 4], [8, 9, 10, 11], [12]]
    await database.aclose()
