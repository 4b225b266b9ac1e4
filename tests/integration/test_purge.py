"""Retention: what goes, and above all what stays, on both databases; under load on PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import LostOwnershipError
from relevo.ids import uuid7
from relevo.ops import purge as purging
from relevo.ports.database import Database
from relevo.script import Rows, Script, Statement
from relevo.settings import ConsumerSettings, DatabaseSettings, RetentionSettings, Settings
from relevo.storage import duties
from relevo.storage import purging as scripts
from tests.support.relays import Store, running_relay
from tests.support.waiting import eventually

DAY = 86_400


@pytest.fixture
async def database(store: Store) -> AsyncIterator[Database]:
    opened = database_for(store.settings)
    yield opened
    await opened.aclose()


def settings_of(store: Store, **retention: Any) -> Settings:
    return Settings(
        database=store.settings,
        consumer=ConsumerSettings(inbox_window_s=7 * DAY),
        retention=RetentionSettings(**({"pause_s": 0.0, "batch": 7} | retention)),
    )


def age(store: Store, table: str, column: str, days: float, where: str) -> None:
    """Make rows look older than they are."""
    ago = (
        f"clock_timestamp() - interval '{days} days'"
        if store.is_postgres
        else f"cast((julianday('now') - 2440587.5 - {days}) * 86400000 as integer)"
    )
    store.do(f"update {table} set {column} = {ago} where {where}")


def an_outbox(store: Store) -> None:
    """1-20 settled long ago, 21-30 lately, 31-40 held long ago (31-35 still in their queue), 41-50 unsettled."""
    store.fill(50)
    for column in ("settled_at", "created_at"):
        age(store, "relevo_outbox", column, 30, "seq <= 40" if column == "settled_at" else "true")
    age(store, "relevo_outbox", "settled_at", 1, "seq between 21 and 30")
    store.do("update relevo_outbox set outcome = 'published' where settled_at is not null")
    store.do("update relevo_outbox set outcome = 'held' where seq between 31 and 40")
    store.do(
        "insert into relevo_held_message (side, topic, held_key, event_id, position, bucket, kind, key, type, "
        "schema_version, content_type, created_at) select 'relay', topic, key, event_id, seq, bucket, kind, key, type, "
        "schema_version, content_type, created_at from relevo_outbox where seq between 31 and 35"
    )


def seqs(store: Store, table: str = "relevo_outbox") -> list[int]:
    return [row[0] for row in store.query(f"select seq from {table} order by seq")]


STAYS = [*range(21, 36), *range(41, 51)]


@pytest.mark.parametrize("then", ["delete", "archive"])
async def test_settled_and_old_goes_and_nothing_else(store: Store, database: Database, then: Any) -> None:
    """The dry run counts exactly what goes. What is young, unsettled or still held stays, whatever its age; archived
    rows are whole and readable; a second run finds nothing."""
    an_outbox(store)
    settings = settings_of(store, then=then)
    whole = store.query("select event_id, key, payload, type from relevo_outbox where seq <= 20 order by seq")
    assert (await purging.count(database, settings)).outbox == 25
    assert len(seqs(store)) == 50
    done = await purging.purge(database, settings, actor="me")
    assert done.outbox == 25
    assert seqs(store) == STAYS
    gone = [*range(1, 21), *range(36, 41)]
    assert seqs(store, "relevo_archive") == (gone if then == "archive" else [])
    if then == "archive":
        kept = store.query("select event_id, key, payload, type from relevo_archive where seq <= 20 order by seq")
        assert kept == whole
        assert store.query("select key, payload from relevo_archive_readable order by seq limit 1") == [("k0", "0")]
    assert (await purging.purge(database, settings, actor="me")).total == 0
    assert store.query("select actor, action, count from relevo_audit order by audit_id") == [
        ("me", "purge", 25),
        ("me", "purge", 0),
    ]


async def test_what_a_job_needs_is_kept(store: Store, database: Database) -> None:
    """A row in ``relevo_keep`` holds everything from its seq, or from its time, on; gone, the next run takes it."""
    an_outbox(store)
    store.do("insert into relevo_keep (name, from_seq) values ('replay', 11)")
    assert (await purging.purge(database, settings_of(store), actor="me")).outbox == 10
    assert seqs(store) == [*range(11, 21), *STAYS[:15], *range(36, 41), *STAYS[15:]]
    store.do("update relevo_keep set from_seq = null")
    age(store, "relevo_keep", "from_time", 31, "true")
    assert (await purging.purge(database, settings_of(store), actor="me")).outbox == 0
    store.do("delete from relevo_keep")
    await purging.purge(database, settings_of(store), actor="me")
    assert seqs(store) == STAYS


async def test_for_ever_means_for_ever(store: Store, database: Database) -> None:
    """``outbox_days = 0`` keeps everything."""
    an_outbox(store)
    assert (await purging.purge(database, settings_of(store, outbox_days=0), actor="me")).outbox == 0
    assert len(seqs(store)) == 50


async def test_the_inbox_outside_its_window_goes(store: Store, database: Database) -> None:
    """Of two consumers: old rows go, whatever kind of id they have; young ones stay, and so does an old one whose
    message is still held, or was discarded: no replay and no redelivery may bring that one back."""
    old, young, foreign_old, foreign_young, held = uuid7_at(30), uuid7(), uuid4(), uuid4(), uuid7_at(29)
    discarded = uuid7_at(31)
    store.do(f"insert into relevo_inbox (consumer, event_id, outcome) values ('billing', '{discarded}', 'discarded')")
    age(store, "relevo_inbox", "processed_at", 31, f"event_id = '{discarded}'")
    for consumer in ("billing", "mail"):
        for event_id in (old, young, foreign_old, foreign_young, held):
            store.do(f"insert into relevo_inbox (consumer, event_id) values ('{consumer}', '{event_id}')")
    ids = ", ".join(f"'{each}'" for each in (old, foreign_old, held))
    age(store, "relevo_inbox", "processed_at", 29, f"event_id in ({ids})")
    store.do(
        "insert into relevo_held_message (side, consumer, topic, held_key, event_id, position, bucket, kind, type, "
        "schema_version, content_type, created_at) select 'consumer', 'billing', 't', "
        + ("'\\x01'" if store.is_postgres else "x'01'")
        + f", '{held}', 1, 1, 'event', 't', 1, 'x', processed_at from relevo_inbox where event_id = '{held}' limit 1"
    )
    settings = settings_of(store, batch=2)
    assert (await purging.count(database, settings)).inbox == 5
    assert (await purging.purge(database, settings, ["inbox"], actor="me")).inbox == 5
    left = store.query("select consumer, event_id from relevo_inbox")
    assert {(consumer, UUID(str(event_id))) for consumer, event_id in left} == {
        ("billing", young),
        ("billing", foreign_young),
        ("billing", held),
        ("billing", discarded),
        ("mail", young),
        ("mail", foreign_young),
    }


async def test_the_inbox_goes_in_bounded_batches(store: Store, database: Database) -> None:
    """FAILURES row 36, the statement: batches of the size asked for, each walking on where the last one ended; nothing
    inside the window, nothing still held."""
    for number in range(7):
        store.do(f"insert into relevo_inbox (consumer, event_id) values ('billing', '{UUID(int=number + 1)}')")
    store.do(
        "insert into relevo_held_message (side, consumer, topic, held_key, event_id, position, bucket, kind, type, "
        "schema_version, content_type, created_at) select 'consumer', 'billing', 't', "
        + ("'\\x01'" if store.is_postgres else "x'01'")
        + f", event_id, 1, 1, 'event', 't', 1, 'x', processed_at from relevo_inbox where event_id = '{UUID(int=1)}'"
    )
    now_s, place = await database.run(scripts.now()), scripts.Place()
    young = await database.run(scripts.inbox(database.dialect, "delete", "billing", now_s - 3600, place, 100))
    assert (young.seen, young.gone) == (7, 0)
    gone = []
    for _ in range(3):
        batch = await database.run(scripts.inbox(database.dialect, "delete", "billing", now_s + 60, place, 3))
        place = batch.last
        gone.append((batch.seen, batch.gone))
    assert gone == [(3, 2), (3, 3), (1, 1)]
    assert len(store.query("select 1 from relevo_inbox")) == 1


async def test_effects_that_are_done_go_after_their_window(store: Store, database: Database) -> None:
    """Only those that are done, and long ago: never pending, sent, unknown or failed ones, nor one whose message is
    held somewhere. While a replay is under way or interrupted, none."""
    states = ["pending", "sent", "done", "failed", "unknown", "done", "done"]
    for number, state in enumerate(states):
        store.do(
            "insert into relevo_effect (name, key, idempotency_key, state, event_id) "
            f"values ('charge', '{number}', '{uuid4()}', '{state}', '{UUID(int=number)}')"
        )
    age(store, "relevo_effect", "created_at", 400, "true")
    age(store, "relevo_effect", "finished_at", 400, "key <> '5'")
    age(store, "relevo_effect", "finished_at", 300, "key = '5'")
    store.do(
        "insert into relevo_held_message (side, consumer, topic, held_key, event_id, position, bucket, kind, type, "
        "schema_version, content_type, created_at) select 'consumer', 'billing', 't', "
        + ("'\\x01'" if store.is_postgres else "x'01'")
        + ", event_id, 1, 1, 'event', 't', 1, 'x', created_at from relevo_effect where key = '6'"
    )
    settings = settings_of(store, batch=2)
    store.do(f"insert into relevo_job (job_id, kind, state, actor) values ('{uuid4()}', 'replay', 'paused', 'me')")
    assert (await purging.purge(database, settings, ["effects"], actor="me")).effects == 0
    store.do("update relevo_job set state = 'done'")
    assert (await purging.purge(database, settings_of(store, effects_days=0), actor="me")).effects == 0
    assert (await purging.count(database, settings)).effects == 1
    assert (await purging.purge(database, settings, actor="me")).effects == 1
    left = [row[0] for row in store.query("select key from relevo_effect order by key")]
    assert left == ["0", "1", "3", "4", "5", "6"]


async def test_a_statement_that_takes_too_long_is_ended_and_the_batch_shrinks(pg_store: Store) -> None:
    """FAILURES row 36: the server ends what takes a second; half as many rows are tried, until it fits. Rows that take
    longer by themselves are an error, and nothing hangs."""
    pg_store.do(
        "create function slow() returns trigger language plpgsql as "
        "$$ begin perform pg_sleep(0.15); return old; end $$;"
        "create trigger slow before delete on relevo_outbox for each row execute function slow()"
    )
    an_outbox(pg_store)
    database = database_for(pg_store.settings)
    try:
        done = await purging.purge(database, settings_of(pg_store, batch=20), ["outbox"], actor="me")
        assert done.outbox == 25 and seqs(pg_store) == STAYS
        pg_store.do(
            "create or replace function slow() returns trigger language plpgsql as "
            "$$ begin perform pg_sleep(60); return old; end $$"
        )
        age(pg_store, "relevo_outbox", "settled_at", 30, "seq = 21")
        with pytest.raises(psycopg.errors.QueryCanceled):
            await purging.purge(database, settings_of(pg_store, batch=4), ["outbox"], actor="me")
        assert seqs(pg_store) == STAYS
    finally:
        await database.aclose()


async def test_one_purges_at_a_time(store: Store, database: Database) -> None:
    """While a relay has the duty, the command says so and touches nothing."""
    an_outbox(store)
    assert await database.run(duties.take(duties.PURGE, uuid4(), 30.0))
    with pytest.raises(LostOwnershipError, match="another process is purging"):
        await purging.purge(database, settings_of(store), actor="me")
    assert len(seqs(store)) == 50


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
async def test_under_load_nothing_waits_and_nothing_deadlocks(pg_store: Store, count: int) -> None:
    """FAILURES row 36, small here and a million in the soak: old inbox and outbox rows go while consumers insert, a
    writer appends and a relay settles. None of the consumers' and the writer's statements waits a second for a lock,
    nobody deadlocks, nothing that is young is removed, and the relay publishes everything in order."""
    old = str(uuid7_at(30))[:13]
    pg_store.do(
        "insert into relevo_inbox (consumer, event_id, processed_at) select 'billing', "
        f"('{old}' || substr(relevo_uuid7()::text, 14))::uuid, "
        f"clock_timestamp() - interval '30 days' from generate_series(1, {count})"
    )
    pg_store.do(
        "insert into relevo_outbox (event_id, bucket, topic, type, created_at, settled_at, outcome) select "
        "relevo_uuid7(), 1, 't', 't', clock_timestamp() - interval '30 days', clock_timestamp() - interval '30 days', "
        f"'published' from generate_series(1, {count})"
    )
    impatient = f"{pg_store.url}?options=-c%20lock_timeout%3D1s"
    database, loader = database_for(pg_store.settings), database_for(DatabaseSettings(url=impatient))
    stop = asyncio.Event()
    written = 0

    async def load() -> None:
        nonlocal written
        while not stop.is_set():
            await loader.run(_insert())
            written += 1

    def append() -> int:
        number = 0
        with psycopg.connect(impatient, autocommit=True) as connection:
            while not stop.is_set() or not number:
                pg_store.append(connection, b"k", number)
                number += 1
        return number

    settings = settings_of(pg_store, batch=1000)
    async with running_relay(pg_store) as relay:
        tasks = [asyncio.create_task(load()) for _ in range(2)]
        appending = asyncio.create_task(asyncio.to_thread(append))
        try:
            done = await purging.purge(database, settings, actor="me")
        finally:
            stop.set()
        await asyncio.gather(*tasks)
        appended = await appending
        await eventually(lambda: pg_store.unsettled() == 0, what="everything appended is published", timeout_s=60)
    assert relay.publisher.payloads(b"k") == list(range(appended))
    assert pg_store.query("select count(*) from relevo_outbox") == [(appended,)]
    await database.aclose()
    await loader.aclose()
    assert (done.outbox, done.inbox) == (count, count)
    assert written > 0 and pg_store.query("select count(*) from relevo_inbox") == [(written,)]
    assert pg_store.query("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]


def _insert() -> Script[Rows]:
    return (
        yield Statement(
            "inbox.insert", {"consumer": "billing", "event_id": str(uuid7()), "generation": 0, "outcome": "done"}
        )
    )


def uuid7_at(days_ago: float) -> UUID:
    made_ms = int((time.time() - days_ago * DAY) * 1000)
    return UUID(int=(made_ms << 80) | (uuid7().int & ((1 << 80) - 1)))
