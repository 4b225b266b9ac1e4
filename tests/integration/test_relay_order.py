"""The relay on real databases, with a publisher that refuses on command: nothing lost, nothing overtaken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from relevo.message import Message
from relevo.outcome import PublishOutcome, Rejected, Unavailable, Unconfirmed
from relevo.policy import Policy
from tests.support.relays import FakePublisher, Store, running_relay
from tests.support.waiting import eventually


async def test_everything_committed_is_published_in_order_per_key(store: Store) -> None:
    store.fill(1000, keys=7)
    async with running_relay(store) as relay:
        await eventually(lambda: len(relay.publisher.log) == 1000, what="1000 published")
        await eventually(lambda: store.unsettled() == 0, what="all settled")
    for key in range(7):
        assert relay.publisher.payloads(b"k%d" % key) == list(range(key, 1000, 7))
    assert store.outcomes() == {"published": 1000}


async def test_what_comes_next_does_not_wait_for_the_broker_to_answer(store: Store) -> None:
    """A relay that has caught up reads on while its last page is unconfirmed; what was read is not read twice."""
    gate = asyncio.Event()
    async with running_relay(store, FakePublisher(gate=gate)) as relay:
        for count in (1, 2, 3):
            store.fill(4, keys=2, start=4 * count)
            await eventually(lambda count=count: relay.publisher.calls == count, what=f"page {count}")
        assert relay.publisher.log == [] and store.unsettled() == 12
        gate.set()
        await eventually(lambda: store.unsettled() == 0, what="all settled")
    for key in range(2):
        assert relay.publisher.payloads(b"k%d" % key) == list(range(4 + key, 16, 2))


async def test_a_rolled_back_row_is_never_published(store: Store) -> None:
    """FAILURES row 3: rolled-back inserts before a good one do not delay it or appear."""
    with contextlib.closing(store.connect()) as connection:
        for number in range(500):
            store.append(connection, b"k", number)
        connection.rollback()
        store.append(connection, b"k", 1000)
        connection.commit()
    async with running_relay(store) as relay:
        await eventually(lambda: store.unsettled() == 0, what="settled")
        assert relay.publisher.payloads() == [1000]


async def test_a_late_commit_is_delivered_and_nobody_waits_for_it(pg_store: Store) -> None:
    """FAILURES rows 1 and 2: ids 4 and 5 are taken, 5 commits first; 4 commits after many later ones were settled."""
    slow, fast = pg_store.connect(), pg_store.connect()
    with contextlib.closing(slow), contextlib.closing(fast):
        pg_store.append(slow, b"slow", 1)
        pg_store.append(fast, b"fast", 2)
        fast.commit()
        async with running_relay(pg_store, batch_max=10) as relay:
            await eventually(lambda: relay.publisher.payloads() == [2], what="the later id, committed first")
            pg_store.fill(100, start=100)
            await eventually(lambda: len(relay.publisher.log) == 101, what="those after it")
            assert 1 not in relay.publisher.payloads()
            slow.commit()
            await eventually(lambda: 1 in relay.publisher.payloads(), what="the late one")
            await eventually(lambda: pg_store.unsettled() == 0, what="all settled")
    assert len(relay.publisher.log) == 102


async def test_a_late_commit_is_found_in_the_middle_of_a_backlog(pg_store: Store) -> None:
    """FAILURES row 2: a row that commits late does not wait behind a backlog, nor is it passed by its own key."""
    late = pg_store.connect()
    with contextlib.closing(late):
        pg_store.append(late, b"late", 1)
        pg_store.fill(2000, start=10_000)
        publisher = FakePublisher()
        seen_at: list[int] = []

        def answer(message: Message) -> PublishOutcome | None:
            if len(publisher.log) == 500 and not seen_at:
                late.commit()
                with contextlib.closing(pg_store.connect()) as later:
                    pg_store.append(later, b"late", 2)
                    later.commit()
                seen_at.append(500)
            return None

        publisher.answer = answer
        async with running_relay(pg_store, publisher, batch_max=50):
            await eventually(lambda: len(publisher.log) == 2002, what="all published")
        assert publisher.payloads(b"late") == [1, 2]
        position = [int(message.payload or b"") for message in publisher.log].index(1)
        assert position < 800, f"the late row waited behind the backlog, published as number {position}"


async def test_a_new_owner_knows_the_held_keys(store: Store) -> None:
    """A key parked by one relay stays parked for the next: its later messages queue, they are not published."""
    store.fill(2, keys=1)
    publisher = FakePublisher(lambda message: Rejected("unknown_topic", "no such topic"))
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="held")
    store.fill(2, keys=1, start=2)
    async with running_relay(store) as relay:
        await eventually(lambda: store.unsettled() == 0, what="the later ones held")
        assert relay.publisher.log == []
    assert store.query("select count(*) from relevo_held_message") == [(4,)]


async def test_a_key_found_live_under_the_lock_flows_again(store: Store) -> None:
    """The relay remembers a key as held; meanwhile it was drained and its row is gone: the message is published."""
    refusing = True

    def answer(message: Message) -> PublishOutcome | None:
        return Rejected("unknown_topic", "no such topic") if refusing else None

    store.fill(1, keys=1)
    async with running_relay(store, FakePublisher(answer)) as relay:
        await eventually(lambda: store.unsettled() == 0, what="held")
        refusing = False
        store.do("delete from relevo_held_message")
        store.do("delete from relevo_held_key")
        store.fill(3, keys=1, start=1)
        await eventually(lambda: relay.publisher.payloads() == [1, 2, 3], what="published after the key became live")


async def test_an_outage_pauses_the_destination_and_spends_nothing(store: Store) -> None:
    """FAILURES rows 16, 17: one destination is away, the other flows; nothing is parked, all drains in order."""
    away = True
    publisher = FakePublisher(available=False)

    def answer(message: Message) -> PublishOutcome | None:
        return Unavailable("connection refused") if away and message.topic == "shop.order" else None

    publisher.answer = answer
    store.fill(20, keys=2)
    store.fill(20, keys=2, topic="other", start=100)
    async with running_relay(store, publisher) as relay:
        await eventually(lambda: len(publisher.log) == 20, what="the other destination")
        await eventually(
            lambda: store.query("select topic from relevo_destination") == [("shop.order",)],
            what="the pause is visible",
        )
        assert list(relay.engine.paused()) == ["shop.order"]
        away, publisher.available = False, True
        await eventually(lambda: store.unsettled() == 0, what="drained")
    assert publisher.payloads(b"k0")[-10:] == list(range(0, 20, 2))
    assert store.query("select count(*) from relevo_held_key") == [(0,)]
    assert store.query("select count(*) from relevo_destination") == [(0,)]


async def test_a_lost_confirm_is_sent_again_with_the_same_id(store: Store) -> None:
    """Sent, no confirm: the same message again, in order, nothing of its key before it."""
    lost: list[Message] = []

    def answer(message: Message) -> PublishOutcome | None:
        if message.payload == b"5" and not lost:
            lost.append(message)
            return Unconfirmed("the confirm did not come")
        return None

    store.fill(20, keys=1)
    async with running_relay(store, FakePublisher(answer)) as relay:
        await eventually(lambda: store.unsettled() == 0, what="settled")
        assert relay.publisher.payloads() == list(range(20))
    assert relay.publisher.log[5].event_id == lost[0].event_id


async def test_block_waits_for_the_rejected_message(store: Store) -> None:
    """Policy block: the destination waits until its first message is accepted; nothing is held or skipped."""
    refusing = True

    def answer(message: Message) -> PublishOutcome | None:
        return Rejected("unknown_topic", "no such topic") if refusing and message.topic == "shop.order" else None

    from datetime import timedelta

    from relevo.policy import Backoff

    policy = Policy(retry=Backoff(base=timedelta(milliseconds=20), cap=timedelta(milliseconds=50)), on_rejected="block")
    store.fill(5, keys=1)
    store.fill(5, keys=1, topic="other", start=50)
    async with running_relay(store, FakePublisher(answer), policy=policy) as relay:
        await eventually(lambda: len(relay.publisher.log) == 5, what="the other destination")
        await eventually(lambda: relay.engine.counters.handed_back >= 10, what="tried more than once")
        refusing = False
        await eventually(lambda: store.unsettled() == 0, what="settled")
        assert relay.publisher.payloads(b"k0")[-5:] == [0, 1, 2, 3, 4]
    assert store.query("select count(*) from relevo_held_key") == [(0,)]


async def test_a_page_is_bounded_by_bytes(store: Store) -> None:
    """Memory of the relay is bounded by bytes in flight, not by the number of large rows."""
    with contextlib.closing(store.connect()) as connection:
        for number in range(20):
            event_id = store.append(connection, b"k", number)
            mark = "%s" if store.is_postgres else "?"
            connection.execute(
                f"update relevo_outbox set payload = {mark} where event_id = {mark}",
                (b"%07d" % number * 10_000, event_id if store.is_postgres else str(event_id)),
            )
        connection.commit()
    async with running_relay(store) as relay:
        relay.engine.settings.batch_bytes_max = 200_000
        await eventually(lambda: store.unsettled() == 0, what="settled")
        assert len(relay.publisher.log) == 20
        assert relay.publisher.calls >= 6


async def test_hand_written_nonsense_is_refused_by_the_table(store: Store) -> None:
    """FAILURES row 8: what no client could read back does not get into the outbox: odd headers, infinite times."""
    store.fill(1)
    bad = ["update relevo_outbox set headers = '[1]'"]
    bad.append(
        "update relevo_outbox set created_at = 'infinity'"
        if store.is_postgres
        else "update relevo_outbox set payload = 'text, not bytes'"
    )
    for statement in bad:
        with contextlib.closing(store.connect()) as connection:
            try:
                connection.execute(statement)
            except Exception as error:
                assert "check" in type(error).__name__.lower() or "integrity" in type(error).__name__.lower()
            else:
                raise AssertionError(f"accepted: {statement}")


async def test_a_publisher_that_is_not_prefix_safe_has_one_unconfirmed_message_per_key(store: Store) -> None:
    """FAILURES row 10: where the broker would let 2 and 3 past a refused 1, the relay never hands them over before 1 is
    confirmed."""
    batches: list[list[bytes | None]] = []
    refused = Rejected("nack", "refused")
    publisher = FakePublisher(lambda message: refused if message.payload == b"4" else None, prefix_safe=False)
    hand_over = publisher.publish

    async def watched(messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
        batches.append([message.key for message in messages])
        return await hand_over(messages)

    publisher.publish = watched  # type: ignore[method-assign]
    store.fill(40, keys=4)
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="settled")
    assert all(len(set(keys)) == len(keys) for keys in batches)
    assert publisher.payloads(b"k0") == [0]
    assert publisher.payloads(b"k1") == list(range(1, 40, 4))
    held = store.query("select payload from relevo_held_message order by position")
    assert [int(bytes(payload)) for (payload,) in held] == list(range(4, 40, 4))


async def test_a_row_of_the_newest_transaction_is_not_passed(pg_store: Store) -> None:
    """FAILURES row 1: the lower ``seq`` is in the hands of a transaction whose xid is above every completed one,
    which a snapshot's xmax does not tell; pages go by, then it commits."""
    with contextlib.closing(pg_store.connect()) as older, contextlib.closing(pg_store.connect()) as newer:
        older.execute("select pg_current_xact_id()")
        pg_store.append(newer, b"newer", 1)
        pg_store.append(older, b"older", 2)
        older.commit()
        async with running_relay(pg_store, tick_s=3600, lease_s=60) as relay:
            for number in range(3, 10):
                await eventually(lambda: pg_store.unsettled() == 0, what="what is visible is settled")
                pg_store.fill(1, keys=1, start=number)
            newer.commit()
            await eventually(lambda: 1 in relay.publisher.payloads(), what="the row that committed last")
