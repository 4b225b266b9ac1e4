"""Where the database is its own broker: what a relay does there, and what retention waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import psycopg
import pytest

from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.errors import ConfigError
from relevo.ops import purge as purging
from relevo.ops.status import status
from relevo.ports.broker import KeptInOutbox
from relevo.ports.database import Database
from relevo.relay.service import PASSING, Relay
from relevo.settings import BrokerSettings, DatabaseSettings, RelaySettings, Settings
from relevo.storage import partitioning
from tests.support.groups import GroupStore, member, numbers, take
from tests.support.log_stores import log_store
from tests.support.relays import postgres_store
from tests.support.schema import create_schema
from tests.support.waiting import eventually

OLD = "clock_timestamp() - interval '30 days'"


@pytest.fixture
def store(pg_database: str) -> GroupStore:
    return GroupStore(log_store(pg_database).url)


@pytest.fixture
async def database(store: GroupStore) -> AsyncIterator[Database]:
    opened = database_for(store.settings)
    yield opened
    await opened.aclose()


async def purged(store: GroupStore, database: Database) -> int:
    return (await purging.purge(database, store.whole, ["outbox"], actor="me")).outbox


async def test_a_relay_moves_nothing_and_does_the_chores(
    store: GroupStore, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It would send its own outbox into itself for ever. A scheduled message gets into the outbox; the relay's cursors
    follow, so that retention can; a second relay shares the lanes as always."""
    caplog.set_level("INFO", logger="relevo.relay")
    store.fill(20)
    store.do(
        "insert into relevo_scheduled (due_at, event_id, bucket, topic, key, type, payload) values "
        "(clock_timestamp(), gen_random_uuid(), 1, 'shop.order', 'k', 'shop.order.placed', '77')"
    )
    async with Relay(store.whole) as one, Relay(store.whole) as two:
        assert PASSING in caplog.text
        await eventually(lambda: store.query("select count(*) from relevo_outbox") == [(21,)], what="it was due")
        await store.all_over()  # many looks at the outbox, by both
        assert all(relay.engine and relay.engine.counters.published == 0 for relay in (one, two))
        report = await status(database, store.whole)
        assert report.pending.count == 0 and all(relay.passing for relay in report.relays) and len(report.relays) == 2
    assert store.query("select count(*), count(settled_at) from relevo_outbox") == [(21, 0)]
    async with member(store) as reader:
        assert sorted(numbers(await take(reader, 21))) == [*range(20), 77]


async def test_the_same_tables_are_known_by_what_the_server_says(
    store: GroupStore, database: Database, postgres_url: str, pg_database: str
) -> None:
    """Not by the URL: another spelling is the same, another prefix in the same database is not."""
    create_schema(pg_database, prefix="other_", source="log")
    for options, expected in ({}, True), ({"prefix": "other_"}, False), ({"schema": "public"}, True):
        broker = broker_for(store.whole.broker.url, options)
        assert isinstance(broker, KeptInOutbox)
        assert await broker.is_outbox_of(database) is expected
    other = database_for(DatabaseSettings(url=store.url, prefix="other_"))
    broker = store.broker
    assert isinstance(broker, KeptInOutbox) and not await broker.is_outbox_of(other)
    await other.aclose()


async def test_a_relay_refuses_tables_that_are_not_read_as_a_log(pg_database: str) -> None:
    create_schema(pg_database)
    settings = Settings(database=DatabaseSettings(url=pg_database), broker=BrokerSettings(url=pg_database))
    with pytest.raises(ConfigError, match=r"only as a log, and it is read as 'mark'. Run: relevo source move log"):
        async with Relay(settings):
            pass


async def test_a_relay_from_another_database(store: GroupStore, postgres_url: str) -> None:
    """There it is a broker like others: what is in the one outbox is appended to the other, with its id and time."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        name = store.url.rpartition("/")[2] + "_b"
        admin.execute(f"create database {name}".encode())
        try:
            origin = postgres_store(store.url.rpartition("/")[0] + "/" + name)
            origin.fill(30)
            settings = msgspec.structs.replace(
                store.whole, database=origin.settings, relay=RelaySettings(source="mark")
            )
            async with Relay(settings):
                async with member(store) as reader:
                    found = await take(reader, 30)
                await eventually(lambda: origin.unsettled() == 0, what="settled at the origin")
            assert sorted(numbers(found)) == list(range(30))
            sent = origin.query("select event_id, created_at from relevo_outbox order by seq")
            came = [
                (each.message.event_id, each.message.created_at) for each in sorted(found, key=lambda d: d.position)
            ]
            assert sorted(came) == sorted(sent)
        finally:
            admin.execute(f"drop database {name} with (force)".encode())


async def test_retention_waits_for_the_slowest_group(store: GroupStore, database: Database) -> None:
    """Whatever marker a row has. A row goes when every group has passed its number and its transaction."""
    with psycopg.connect(store.url) as late:
        store.append(late, b"k", 1000)
        store.fill(20)
        store.do("update relevo_outbox set settled_at = created_at, outcome = 'published' where seq < 10")
        store.do(f"update relevo_outbox set created_at = {OLD}")
        store.do(f"update relevo_outbox set settled_at = {OLD} where settled_at is not null")
        async with member(store, "slow") as slow, Relay(store.whole):
            async with member(store) as fast:
                await take(fast, 20)
            await take(slow, 5)
            assert await purged(store, database) == 0
            found = await take(slow, 15)
            assert len(found) == 15
            late.commit()
            store.do(f"update relevo_outbox set created_at = {OLD}")
            await purged(store, database)
            assert store.query("select seq from relevo_outbox where payload = '1000'") == [(1,)], "nobody has read it"
            await take(slow, 1)
            await purged(store, database)
            assert store.query("select seq from relevo_outbox where payload = '1000'") == [(1,)], "one has not"
            async with member(store) as fast:
                await take(fast, 1)
                await store.read_by_all(slow, fast)
                await store.all_over()
    await purged(store, database)
    assert store.query("select count(*) from relevo_outbox") == [(0,)]


async def test_a_partition_waits_for_the_groups_under_its_lock(store: GroupStore, database: Database) -> None:
    """All of it has a marker, and a group stands before its last row: `unread`, in the listing and under the lock."""
    async with member(store) as reader:
        store.fill(10)
        store.do(f"update relevo_outbox set created_at = {OLD}, settled_at = {OLD}, outcome = 'published'")
        first = await take(reader, 9)
        assert len(first) == 9
    assert await database.run(partitioning.cut()) == "promised"
    assert await database.run(partitioning.prove())
    assert await database.run(partitioning.cut()) == "cut"
    assert (await database.run(partitioning.listed(), read_only=True))[0].unsettled
    newest = float(store.query("select extract(epoch from max(created_at)) from relevo_outbox")[0][0]) + 1
    async with Relay(store.whole):
        await store.all_over()
    assert await database.run(partitioning.drop("relevo_outbox_p0", newest)) == "unread"
    async with member(store) as reader:
        await take(reader, 1)
        await store.read_by_all(reader)
    assert await database.run(partitioning.drop("relevo_outbox_p0", newest)) == "dropped"
