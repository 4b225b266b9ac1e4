"""What an operator freed goes out in order on the relay's side, and new arrivals wait for their turn."""

from __future__ import annotations

import asyncio
import contextlib
import os

from relevo.message import Message
from relevo.outcome import PublishOutcome, Rejected, Unavailable, Unconfirmed
from relevo.policy import Policy
from tests.support.relays import FakePublisher, Store, running_relay
from tests.support.waiting import eventually

DRAIN = "update relevo_held_key set state = 'draining', due_at = null, attempts = 0, holder = null"


class Fixable:
    """Refuses the payloads in ``bad`` until they are taken out of it."""

    def __init__(self, *bad: int, outcome: PublishOutcome | None = None) -> None:
        self.bad = set(bad)
        self.outcome = outcome or Rejected("too_large", "too large")

    def __call__(self, message: Message) -> PublishOutcome | None:
        return self.outcome if int(message.payload or b"0") in self.bad else None


def held_keys(store: Store) -> list[tuple[str, str]]:
    return [tuple(row) for row in store.query("select state, reason from relevo_held_key")]  # type: ignore[misc]


async def test_a_freed_key_goes_out_in_order_and_becomes_live(store: Store) -> None:
    """Parked behind a refused message, freed, drained in order; what came meanwhile behind it; then the key is live and
    the originals say so."""
    answer = Fixable(0)
    publisher = FakePublisher(answer)
    store.fill(30, keys=3)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="all settled")
        assert publisher.payloads(b"k0") == []
        assert publisher.payloads(b"k1") == list(range(1, 30, 3))
        answer.bad.clear()
        store.fill(30, keys=3, start=30)
        await eventually(lambda: store.unsettled() == 0, what="arrivals queue behind")
        assert publisher.payloads(b"k0") == []
        store.do(DRAIN)
        await eventually(lambda: held_keys(store) == [], what="the key is live")
        assert publisher.payloads(b"k0") == list(range(0, 60, 3))
        assert store.query("select count(*) from relevo_held_message") == [(0,)]
        assert store.outcomes() == {"published": 60}
        store.fill(3, keys=3, start=60)
        await eventually(lambda: publisher.payloads(b"k0")[-1] == 60, what="live again")


async def test_a_second_refusal_parks_again_with_the_new_reason(store: Store) -> None:
    """The fix was half a fix: what was before the next bad one is out, the rest is parked with the new reason."""
    answer = Fixable(0)
    publisher = FakePublisher(answer)
    store.fill(6, keys=1)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="all held")
        answer.bad, answer.outcome = {3}, Rejected("other", "another reason")
        store.do(DRAIN)
        await eventually(
            lambda: held_keys(store) == [("parked", "other: another reason")], what="parked with the new reason"
        )
        assert publisher.payloads() == [0, 1, 2]
        assert store.query("select holder from relevo_held_key") == [(None,)]
        answer.bad.clear()
        store.do(DRAIN)
        await eventually(lambda: held_keys(store) == [], what="live")
    assert publisher.payloads() == list(range(6))


async def test_an_outage_while_draining_pauses_the_destination_and_leaves_the_key(store: Store) -> None:
    """Unavailable is not poison, also for what was parked: no park, no attempt, and it goes on by itself."""
    answer = Fixable(0)
    publisher = FakePublisher(answer)
    store.fill(5, keys=1)
    async with running_relay(store, publisher) as relay:
        await eventually(lambda: store.unsettled() == 0, what="all held")
        answer.bad, answer.outcome, publisher.available = {2}, Unavailable("gone"), False
        store.do(DRAIN)
        await eventually(lambda: relay.engine.destinations.paused, what="paused")
        await eventually(lambda: len(store.query("select 1 from relevo_held_message")) == 3, what="0 and 1 are out")
        assert store.query("select state, attempts from relevo_held_key") == [("draining", 0)]
        answer.bad.clear()
        publisher.available = True
        await eventually(lambda: held_keys(store) == [], what="live")
    assert publisher.payloads() == list(range(5))


async def test_an_unconfirmed_message_goes_again_in_order(store: Store) -> None:
    """The confirm is lost for one of the queue: it and what follows go again; duplicates at most, no swap."""
    answer = Fixable(0)
    publisher = FakePublisher(answer)
    store.fill(5, keys=1)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="all held")
        answer.bad, answer.outcome = {2}, Unconfirmed("lost")
        store.do(DRAIN)
        await eventually(lambda: len(store.query("select 1 from relevo_held_message")) == 3, what="0 and 1 are out")
        answer.bad.clear()
        await eventually(lambda: held_keys(store) == [], what="live")
    assert publisher.payloads() == list(range(5))


async def test_skip_as_a_policy_drops_the_one_message_of_a_drained_key(store: Store) -> None:
    """on_rejected = skip, decided after the key was parked: the next drain passes the bad one by, and says so."""
    answer = Fixable(2)
    publisher = FakePublisher(answer)
    store.fill(5, keys=1)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="2, 3, 4 held")
    async with running_relay(store, publisher, policy=Policy(on_rejected="skip")):
        store.do(DRAIN)
        await eventually(lambda: held_keys(store) == [], what="live")
    assert publisher.payloads() == [0, 1, 3, 4]
    assert store.query("select payload from relevo_outbox where outcome = 'skipped'")[0][0] == b"2"


async def test_block_as_a_policy_waits_with_the_key_draining(store: Store) -> None:
    """on_rejected = block: the destination is blocked, nothing is parked again and nothing passes."""
    answer = Fixable(2)
    publisher = FakePublisher(answer)
    store.fill(5, keys=1)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="2, 3, 4 held")
    async with running_relay(store, publisher, policy=Policy(on_rejected="block")) as relay:
        store.do(DRAIN)
        await eventually(lambda: relay.engine.destinations.paused, what="blocked")
        assert [state for state, _ in held_keys(store)] == ["draining"]
        assert publisher.payloads() == [0, 1]


async def test_a_hot_key_is_drained_until_it_is_overtaken(store: Store) -> None:
    """Arrivals keep coming while the queue is drained in small batches: everything in order, and live at the end."""
    answer = Fixable(0)
    publisher = FakePublisher(answer)
    store.fill(40, keys=1)
    async with running_relay(store, publisher, batch_max=7):
        await eventually(lambda: store.unsettled() == 0, what="all held")
        answer.bad.clear()
        store.do(DRAIN)
        for start in range(40, 140, 10):
            store.fill(10, keys=1, start=start)
            await asyncio.sleep(0)
        await eventually(lambda: held_keys(store) == [] and store.unsettled() == 0, what="live and all out")
    assert publisher.payloads() == list(range(140))


async def test_a_key_freed_while_no_relay_ran_is_drained_by_the_next(store: Store) -> None:
    """The flip survives: whoever owns the lane next drains it, before anything later of the key."""
    answer = Fixable(0)
    publisher = FakePublisher(answer)
    store.fill(5, keys=1)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="all held")
    store.do(DRAIN)
    store.fill(5, keys=1, start=5)
    answer.bad.clear()
    async with running_relay(store, publisher):
        await eventually(lambda: len(publisher.log) == 10, what="all out")
    assert publisher.payloads() == list(range(10))


async def test_lanes_that_change_hands_while_draining(store: Store) -> None:
    """A second relay comes while keys are drained: everything is delivered, in order per key but for duplicates."""
    answer = Fixable(*range(20))
    first, second = FakePublisher(answer), FakePublisher(answer)
    store.fill(200, keys=20)
    async with running_relay(store, first, batch_max=10):
        await eventually(lambda: store.unsettled() == 0, what="all held", timeout_s=30)
        answer.bad.clear()
        store.do(DRAIN)
        async with running_relay(store, second, batch_max=10):
            await eventually(lambda: held_keys(store) == [], what="all drained", timeout_s=30)
    for key in range(20):
        name = b"k%d" % key
        seen = dict.fromkeys([*first.payloads(name), *second.payloads(name)])
        assert list(seen) == list(range(key, 200, 20))


async def test_a_key_too_long_for_an_index_is_held_and_drained_like_any_other(store: Store) -> None:
    """A broker takes keys of any length; an index does not."""
    key = os.urandom(5000)
    with contextlib.closing(store.connect()) as connection:
        for number in range(3):
            store.append(connection, key, number)
        connection.commit()
    answer = Fixable(0)
    publisher = FakePublisher(answer)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="all held")
        assert publisher.payloads() == []
        answer.bad.clear()
        store.do(DRAIN)
        await eventually(lambda: held_keys(store) == [], what="live again")
    assert publisher.payloads(key) == [0, 1, 2]
