"""Consumers that read the outbox of PostgreSQL themselves: late commits, sharing, zombies, topics, places."""

from __future__ import annotations

import logging

import psycopg
import pytest

from relevo.brokers import broker_for
from relevo.brokers.postgres.subscription import PostgresSubscription
from relevo.clients import database_for
from relevo.consumer import Consumer, Event
from relevo.errors import ConfigError, RefusedError
from relevo.ids import uuid7
from relevo.ops import groups
from relevo.ops.moving_plan import plan
from relevo.ops.status import status
from relevo.outcome import Unavailable
from relevo.ports.broker import Broker
from relevo.testing.broker_processes import make_message, member_that_hangs, running
from tests.support import consumers
from tests.support.consumers import effects, insert, make_effects
from tests.support.events import OrderPlaced
from tests.support.groups import GROUP, TOPIC, GroupStore, member, numbers, take
from tests.support.log_stores import log_store
from tests.support.schema import create_schema
from tests.support.waiting import eventually


@pytest.fixture
def store(pg_database: str) -> GroupStore:
    return GroupStore(log_store(pg_database).url)


async def test_a_late_commit_is_delivered_and_holds_nobody_up(store: GroupStore) -> None:
    """FAILURES rows 1-3: a transaction took its number first and commits when everything else was settled, and the
    group has stored that. Its row comes all the same, to whoever reads then; the group waited for nothing."""
    with psycopg.connect(store.url) as late, psycopg.connect(store.url) as never:
        store.append(late, b"k", 1000)
        store.append(never, b"k", 2000)
        store.fill(30)
        async with member(store) as one:
            assert sorted(numbers(await take(one, 30))) == list(range(30))
            assert store.behind() == 0
        late.commit()
        never.rollback()
    assert store.behind() == 1
    store.fill(5, start=30)
    async with member(store) as two:
        found = await take(two, 6)
        assert sorted(numbers(found)) == [*range(30, 35), 1000]
        assert await two.take(10, 0.2) == []
    assert store.behind() == 0


async def test_an_unsettled_late_row_comes_again_and_nothing_else(store: GroupStore) -> None:
    """A member that goes in the middle of the late rows of one lane leaves the place within them."""
    with psycopg.connect(store.url) as late:
        for number in range(3):
            store.append(late, b"k", 1000 + number)
        store.fill(10, keys=1)
        async with member(store) as one:
            await take(one, 10)
        late.commit()
    async with member(store) as two:
        found = await take(two, 3, settle=False)
        await two.settle([found[0], found[2]])
    async with member(store) as three:
        assert numbers(await take(three, 2)) == [1001, 1002]
        assert await three.take(10, 0.2) == []


async def test_a_process_that_is_killed_is_followed_by_another(store: GroupStore) -> None:
    """FAILURES row 11: SIGKILL on a member that shares the lanes with nobody yet and has settled some; then two share
    them, and get what it had not settled, each message once."""
    broker = store.broker
    publisher = await broker.publisher(source="urn:relevo:test")
    sent = [make_message(TOPIC, key=b"%d" % number) for number in range(40)]
    assert await publisher.publish(sent) == {}
    await publisher.aclose()
    with running(member_that_hangs, store.make_broker, GROUP, TOPIC, 40, 10) as child:
        await eventually(child.said, what="the child has all")
        async with member(store) as one:
            await eventually(one.lag, what="shared while it lives: its lanes are handed over")
            child.kill()
            async with member(store) as two:

                async def shared() -> bool:
                    ones, twos = await one.lag(), await two.lag()
                    return bool(ones and twos) and len(ones) + len(twos) == 64

                await eventually(shared, what="the two share what it had", timeout_s=60)
                found = []

                async def all_there() -> bool:
                    found.extend(await one.take(40, 0.1))
                    found.extend(await two.take(40, 0.1))
                    return len({each.message.event_id for each in found}) >= 30

                await eventually(all_there, what="what was not settled")
                await one.settle(found)
                await two.settle(found)
                assert await one.lag() and await two.lag()
                assert not set(await one.lag()) & set(await two.lag())
    # The child settled the first ten it took; those and no others may be missing.
    assert len({each.message.event_id for each in found}) == 30
    assert store.behind() == 0


async def test_a_zombie_moves_nothing(store: GroupStore) -> None:
    """FAILURES rows 11 and 12: the lanes were taken over without its knowing. It reads nothing more, and what it
    settles is not stored."""
    store.fill(20)
    async with member(store) as one:
        found = await take(one, 20, settle=False)
        store.do("update relevo_group_lane set epoch = epoch + 1, holder = gen_random_uuid(), expires_at = 'infinity'")
        await one.settle(found)
        await one.flush()
        assert not any(one.owns(each) for each in found)
        store.fill(5, start=20)
        assert await one.take(10, 0.3) == []
    assert store.behind() == 25


async def test_a_topic_that_is_read_later_begins_where_the_group_stands(store: GroupStore) -> None:
    """And one that is not read any more is passed by."""
    store.fill(5)
    store.fill(5, topic="shop.other", start=100)
    async with member(store) as one:
        await take(one, 5)
        assert await one.take(10, 0.1) == []
    assert store.behind() == 0
    store.fill(5, topic="shop.other", start=200)
    async with member(store, topics=[TOPIC, "shop.other"]) as two:
        assert sorted(numbers(await take(two, 5))) == list(range(200, 205))
    assert store.query("select topics from relevo_group") == [([TOPIC, "shop.other"],)]


async def test_while_versions_run_side_by_side_no_topic_is_passed_by(
    store: GroupStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A new version reads one more topic. The old one gives its lanes up, with a warning."""
    caplog.set_level(logging.WARNING)
    async with member(store) as old:
        assert len(await old.lag()) == 64
        async with member(store, topics=[TOPIC, "shop.other"]) as new:

            async def all_with_the_new() -> bool:
                return len(await new.lag()) == 64

            await eventually(all_with_the_new, what="all lanes with the new version")
            assert "also reads shop.other" in caplog.text
            store.fill(10, topic="shop.other")
            store.fill(10, start=10)
            assert sorted(numbers(await take(new, 20))) == list(range(20))
        await eventually(old.lag, what="lanes for the old version, once it is alone")


async def test_a_new_group_may_begin_now_though_somebody_is_writing(store: GroupStore) -> None:
    """What is committed is not for it; a transaction that is open then commits later, so it is."""
    store.fill(5)
    with psycopg.connect(store.url) as open_now:
        store.append(open_now, b"k", 1000)
        async with member(store, from_start=False) as one:
            open_now.commit()
            store.fill(1, start=50)
            assert sorted(numbers(await take(one, 2))) == [50, 1000]


async def test_the_outbox_must_be_a_log(pg_database: str) -> None:
    """Without its index late rows would cost a scan of the table: said at the start, with what to do."""
    create_schema(pg_database)
    with pytest.raises(ConfigError, match="relevo source move log"):
        await broker_for(pg_database).subscribe(GROUP, [TOPIC])


async def test_tables_that_are_not_there(pg_database: str) -> None:
    """Check and subscribe say so, and a publisher parks nothing: it is an outage."""
    broker = broker_for(pg_database)
    for asked in (broker.check(), broker.subscribe(GROUP, [TOPIC])):
        with pytest.raises(ConfigError, match="relevo migrate"):
            await asked
    publisher = await broker.publisher(source="urn:relevo:test")
    outcomes = await publisher.publish([make_message(TOPIC)])
    assert isinstance(outcomes[0], Unavailable) and "relevo migrate" in outcomes[0].reason
    await publisher.aclose()


async def test_history_begins_where_it_is_told_and_has_an_end(store: GroupStore) -> None:
    """By time, by position, and up to what was there when it was opened; in the order of positions."""
    store.fill(20)
    store.do("update relevo_outbox set created_at = clock_timestamp() - interval '1 day' where seq <= 10")
    broker = store.broker
    history = await broker.history([TOPIC])  # type: ignore[attr-defined]
    store.fill(5, start=20)
    pages = [await history.take(8) for _ in range(4)]
    await history.aclose()
    assert [len(page) for page in pages] == [8, 8, 4, 0]
    found = [each for page in pages for each in page]
    assert numbers(found) == list(range(20)) and [each.position for each in found] == list(range(1, 21))
    (since,) = store.query("select clock_timestamp() - interval '1 hour'")[0]
    for how, expected in ({"since": since}, 15), ({"after": {found[0].shard: 12}}, 13):
        history = await broker.history([TOPIC], **how)  # type: ignore[attr-defined]
        assert len(await history.take(100)) == expected
        await history.aclose()


async def test_groups_are_listed_and_dropped(store: GroupStore) -> None:
    """With an audit row; refused while a process of it lives, and for a name that nobody has."""
    store.fill(7)
    database = database_for(store.settings)
    async with member(store) as one:
        await take(one, 3)
        with pytest.raises(RefusedError, match="lives"):
            await groups.drop(database, GROUP, actor="me", reason="")
        (report,) = (await status(database, store.whole)).groups
        assert (report.name, report.members, report.topics) == (GROUP, 1, [TOPIC])
    (report,) = await groups.listed(database)
    assert (report.members, report.behind) == (0, 4) and report.oldest_age_s is not None
    for target in ("mark", "wal"):
        with pytest.raises(ConfigError, match=r"groups billing read this outbox.*groups drop"):
            await plan(database, target)
    store.do("update relevo_group_lane set saved_at = clock_timestamp() - interval '2 hours'")
    warnings = (await status(database, store.whole)).warnings
    assert any("relevo groups drop billing" in each for each in warnings), warnings
    assert (await groups.drop(database, GROUP, actor="me", reason="gone")).behind == 4
    with pytest.raises(RefusedError, match="no group"):
        await groups.drop(database, GROUP, actor="me", reason="")
    assert await groups.listed(database) == []
    audit = store.query("select actor, action, reason, count from relevo_audit")
    assert audit == [("me", "groups.drop", "gone", 4)]
    assert (await plan(database, "mark")).steps
    await database.aclose()


async def test_effects_happen_once_with_no_broker_at_all(store: GroupStore) -> None:
    """The whole second step: events in the outbox, a consumer, an inbox, one database."""
    make_effects(store)
    billing = Consumer(GROUP, topics=[TOPIC])

    @billing.on(OrderPlaced)
    def charge(event: Event[OrderPlaced], tx: psycopg.Connection[object]) -> None:
        insert(tx, event.data.order_id)

    broker: Broker = store.broker
    publisher = await broker.publisher(source="urn:relevo:test")
    sent = [consumers.order(number, key=f"k{number % 5}") for number in range(50)]
    assert await publisher.publish(sent) == {}
    assert await publisher.publish(sent[:20]) == {}, "on the wire twice"
    await publisher.aclose()
    async with consumers.running(billing, store, broker):
        await eventually(lambda: store.behind() == 0, what="all settled")
    assert sorted(effects(store)) == list(range(50))
    by_key = [[number for number in effects(store) if number % 5 == key] for key in range(5)]
    assert all(found == sorted(found) for found in by_key)


async def test_what_the_table_does_not_take_is_rejected_and_its_neighbours_are_not(store: GroupStore) -> None:
    """A header with a NUL, which no jsonb keeps: found out one by one; its key waits behind it."""
    broker = store.broker
    publisher = await broker.publisher(source="urn:relevo:test")
    bad = make_message(TOPIC, key=b"k", headers={"note": "a\x00b"})
    sent = [make_message(TOPIC, key=b"o"), bad, make_message(TOPIC, key=b"k"), make_message(TOPIC)]
    outcomes = await publisher.publish(sent)
    assert {index: type(outcome).__name__ for index, outcome in outcomes.items()} == {1: "Rejected", 2: "Unconfirmed"}
    await publisher.aclose()
    stored = [row[0] for row in store.query("select event_id from relevo_outbox order by seq")]
    assert stored == [sent[0].event_id, sent[3].event_id] and uuid7() not in stored


async def test_after_a_failover_everything_in_memory_is_forgotten(
    store: GroupStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was read on another timeline may never have been. Nothing read there is stored; the group
    goes on from what the server has, at once, with new epochs."""
    monkeypatch.setattr("relevo.brokers.postgres.subscription.COMMIT_EVERY_S", 60.0)  # nothing by itself
    store.fill(10)
    async with member(store) as one:
        assert isinstance(one, PostgresSubscription)
        found = await take(one, 10, settle=False)
        one._pages.timeline = one._saving.timeline = 99
        await one.settle(found[:5])
        await one.flush()
        assert store.behind() == 10, "another timeline's history is not stored"
        again = await take(one, 10)
        assert {each.position for each in again} == {each.position for each in found}
        assert not any(one.owns(each) for each in found)
        assert store.behind() == 0
        caplog.clear()
        one._pages.timeline = 99
        assert await one.take(10, 0.2) == [] and "failed over" in caplog.text
        assert len(await one.lag()) == 64


async def test_a_member_that_is_away_for_longer_than_its_group_joins_anew(store: GroupStore) -> None:
    """Frozen beyond its lease, and the group was dropped meanwhile: there is a new one, and nothing of the old."""
    store.fill(3)
    async with member(store) as one:
        found = await take(one, 3)
        store.do("delete from relevo_group")
        store.fill(2, start=3)

        async def all_again() -> bool:
            found.extend(await one.take(10, 0.2))
            return len(found) >= 8

        await eventually(all_again, what="from the start, as a new group")
        assert sorted(numbers(found)) == [0, 0, 1, 1, 2, 2, 3, 4]
