"""Retention by partitions on a real PostgreSQL: what is cut, what is dropped whole, and above all what stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import ConfigError, LostOwnershipError
from relevo.ops import purge as purging
from relevo.ops.migrate import migrate
from relevo.ops.status import status
from relevo.outcome import Rejected
from relevo.ports.database import Database
from relevo.relay.maintenance import Maintenance
from relevo.relay.partitions import OPEN, YOUNG
from relevo.relay.purging import Fate, Purged
from relevo.settings import RetentionSettings, Settings, load
from relevo.storage import duties, partitioning, scheduling
from tests.support.relays import FakePublisher, Store, running_relay, sqlite_store
from tests.support.waiting import eventually

NAMES = "select name from relevo_outbox_partitions() order by from_seq"


@pytest.fixture
async def database(pg_store: Store) -> AsyncIterator[Database]:
    opened = database_for(pg_store.settings)
    yield opened
    await opened.aclose()


def settings_of(store: Store, **retention: Any) -> Settings:
    chosen = {"then": "partitions", "pause_s": 0.0, "batch": 7} | retention
    return Settings(database=store.settings, retention=RetentionSettings(**chosen))


def settle(store: Store, days: float = 30.0, where: str = "settled_at is null") -> None:
    """Make rows look written and handed over so long ago."""
    ago = f"clock_timestamp() - interval '{days} days'"
    store.do(
        f"update relevo_outbox set created_at = {ago}, settled_at = {ago}, "
        f"outcome = coalesce(outcome, 'published') where {where}"
    )


def names(store: Store) -> list[str]:
    return [row[0].removeprefix("relevo_outbox_") for row in store.query(NAMES)]


async def purge(store: Store, database: Database, **retention: Any) -> Purged:
    return await purging.purge(database, settings_of(store, **retention), ["partitions"], actor="me")


async def old_days(store: Store, database: Database, days: int = 2, rows: int = 10) -> None:
    """``days`` closed partitions of ``rows`` old settled rows each, p0 to p<days-1>, an open empty one and the end."""
    for day in range(days):
        store.fill(rows, start=day * rows)
        settle(store)
        assert (await purge(store, database, outbox_days=9000.0)).cut


def whys(done: Purged) -> dict[str, str]:
    return {fate.name.removeprefix("relevo_outbox_"): fate.why for fate in done.partitions}


async def test_a_day_is_closed_and_what_is_over_is_dropped_whole(pg_store: Store, database: Database) -> None:
    """The first cut, the second (which finds an empty end and reads nothing), and the drop of both old days: the dry
    run says exactly which, with how many rows, and changes nothing; each act is in the audit."""
    pg_store.fill(10)
    assert not (await purge(pg_store, database)).cut, "a day that is not over is not closed"
    settle(pg_store)
    found = await purging.count(database, settings_of(pg_store, outbox_days=9000.0))
    assert found.cut and names(pg_store) == ["p0"]
    await old_days(pg_store, database, days=2)
    assert names(pg_store) == ["p0", "p1", "p3", "p4"]
    found = await purging.count(database, settings_of(pg_store))
    assert found.partitions[:2] == [Fate("relevo_outbox_p0", 20), Fate("relevo_outbox_p1", 10)]
    assert (found.outbox, found.cut) == (30, False) and len(names(pg_store)) == 4
    done = await purge(pg_store, database)
    assert done.partitions == found.partitions and done.outbox == 30
    assert whys(done) == {"p0": "", "p1": "", "p3": OPEN, "p4": OPEN}
    assert names(pg_store) == ["p3", "p4"]
    acts = "select action, actor, count, coalesce(filter->>'partition', '') from relevo_audit where action <> 'purge'"
    assert pg_store.query(f"{acts} order by audit_id") == [
        ("purge.cut", "me", 0, ""),
        ("purge.cut", "me", 0, ""),
        ("purge.partition", "me", 20, "relevo_outbox_p0"),
        ("purge.partition", "me", 10, "relevo_outbox_p1"),
    ]
    assert (await purge(pg_store, database)).nothing


async def test_new_rows_go_on_in_order_in_the_new_partition(pg_store: Store, database: Database) -> None:
    """Numbers go on above all earlier ones, in the partition that is open; the relay reads across, in order."""
    await old_days(pg_store, database)
    pg_store.do("update relevo_outbox set settled_at = null, outcome = null")
    pg_store.fill(10, start=20)
    placed = pg_store.query("select tableoid::regclass::text, count(*) from relevo_outbox group by 1 order by 1")
    assert placed == [("relevo_outbox_p0", 10), ("relevo_outbox_p1", 10), ("relevo_outbox_p3", 10)]
    async with running_relay(pg_store) as running:
        await eventually(lambda: len(running.publisher.log) == 30, what="all are published")
        pg_store.fill(5, start=30)
        await eventually(lambda: len(running.publisher.log) == 35, what="later ones too")
    for key in range(10):
        seen = running.publisher.payloads(b"k%d" % key)
        assert seen == sorted(seen)


async def test_a_writer_in_the_open_partition_keeps_its_row(pg_store: Store, database: Database) -> None:
    """While a writer has a transaction open, its partition is not closed, and it is said whose; other writers are not
    kept waiting. After its commit the partition is closed, and the row, which is not handed over, keeps it."""
    pg_store.fill(10)
    settle(pg_store)
    with contextlib.closing(pg_store.connect()) as writer:
        pg_store.append(writer, b"late", 99)
        pid = writer.info.backend_pid
        done, _ = await asyncio.gather(purge(pg_store, database), asyncio.to_thread(_appends, pg_store))
        assert not done.cut
        assert f"pid {pid} has a transaction open in it" in done.partitions[0].why
        assert names(pg_store) == ["p0"]
        writer.commit()
    done = await purge(pg_store, database)
    assert done.cut and whys(done)["p0"] == "has messages that are not handed over"
    assert [row[0] for row in pg_store.query("select payload from relevo_outbox where key = 'late'")] == [b"99"]
    settle(pg_store)
    assert whys(await purge(pg_store, database))["p0"] == ""


def _appends(store: Store) -> None:
    """Writers wait behind a lock for no longer than it may be asked for, here with a wide margin for a busy machine."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("set lock_timeout = '20s'")
        for number in range(20):
            store.append(connection, b"beside", number)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("update relevo_outbox set settled_at = null where seq = 5", "has messages that are not handed over"),
        ("update relevo_outbox set settled_at = now() where seq = 5", YOUNG),
        ("update relevo_outbox set settled_at = now() where seq = 10", YOUNG),
        ("insert into relevo_keep (name, from_seq) values ('replay', 4)", "is needed by a replay"),
        (
            "insert into relevo_keep (name, from_time) values ('replay', now() - interval '31 days')",
            "is needed by a replay",
        ),
        (
            "insert into relevo_held_message (side, topic, held_key, event_id, position, bucket, kind, type, "
            "schema_version, content_type, created_at) values ('relay', 't', 'k', gen_random_uuid(), 5, 1, 'event', "
            "'t', 1, 'x', now())",
            "has messages that are held",
        ),
    ],
)
async def test_what_somebody_needs_keeps_its_partition(pg_store: Store, database: Database, sql: str, why: str) -> None:
    """Not handed over, settled lately (in the middle or at the end), held, or in a replay's reach: it stays, with the
    reason; its neighbour, where that does not hold, goes."""
    await old_days(pg_store, database)
    pg_store.do(sql)
    found = await purging.count(database, settings_of(pg_store))
    done = await purge(pg_store, database)
    assert whys(found) == whys(done)
    assert whys(done)["p0"] == why
    assert whys(done)["p1"] == ("" if "keep" not in sql else why)
    assert "p0" in names(pg_store)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("update relevo_outbox set settled_at = null where seq = 5", "unsettled"),
        ("insert into relevo_keep (name, from_seq) values ('replay', 4)", "kept"),
        ("select 1", "dropped"),
    ],
)
async def test_what_changed_since_the_look_is_seen_under_the_lock(
    pg_store: Store, database: Database, sql: str, said: str
) -> None:
    """The drop looks again, whatever was found before."""
    await old_days(pg_store, database)
    with contextlib.closing(pg_store.connect()) as connection:
        connection.execute(sql)
        connection.commit()
    assert await database.run(partitioning.drop("relevo_outbox_p0", 0.0)) == said
    assert ("p0" in names(pg_store)) == (said != "dropped")


async def test_what_is_open_or_gone_is_not_dropped(pg_store: Store, database: Database) -> None:
    """The one that is written to, the end behind it, and names that are none of the outbox's."""
    await old_days(pg_store, database)
    for name, said in (("p3", "open"), ("p4", "open"), ("p9", "gone")):
        assert await database.run(partitioning.drop(f"relevo_outbox_{name}", 0.0)) == said
    assert await database.run(partitioning.drop("relevo_inbox", 0.0)) == "gone"
    assert names(pg_store) == ["p0", "p1", "p3", "p4"]


async def test_a_replay_that_is_just_beginning_is_waited_for(pg_store: Store, database: Database) -> None:
    """Its row in the list of what is kept is not committed yet: the drop does not pass it."""
    await old_days(pg_store, database)
    with contextlib.closing(pg_store.connect()) as connection:
        connection.execute("insert into relevo_keep (name, from_seq) values ('replay', 4)")
        assert await database.run(partitioning.drop("relevo_outbox_p0", 0.0)) == "locked"
        connection.commit()
    assert await database.run(partitioning.drop("relevo_outbox_p0", 0.0)) == "kept"


async def test_a_reader_inside_is_waited_for_and_named(pg_store: Store, database: Database) -> None:
    """Somebody reads the outbox in a long transaction: nothing is dropped while it lasts, and the next run does it."""
    await old_days(pg_store, database)
    with contextlib.closing(pg_store.connect()) as reader:
        reader.execute("select count(*) from relevo_outbox")
        done = await purge(pg_store, database)
        assert f"pid {reader.info.backend_pid} has a transaction open" in whys(done)["p0"]
        assert "p0" in names(pg_store)
    assert whys(await purge(pg_store, database))["p0"] == ""


async def test_a_crash_between_the_steps_of_the_first_cut_harms_nobody(pg_store: Store, database: Database) -> None:
    """Promised, and then nobody went on: writers and relays work; the next run takes it up, proved or not."""
    pg_store.fill(10)
    settle(pg_store)
    assert await database.run(partitioning.cut()) == "promised"
    pg_store.fill(5, start=10)
    assert await database.run(partitioning.cut()) == "promised"
    assert await database.run(partitioning.prove())
    async with running_relay(pg_store) as running:
        await eventually(lambda: len(running.publisher.log) == 5, what="relays work meanwhile")
    assert (await purge(pg_store, database, outbox_days=9000.0)).cut
    pg_store.fill(5, start=15)
    assert names(pg_store) == ["p0", "p1", "p2"]
    placed = pg_store.query("select tableoid::regclass::text, count(*) from relevo_outbox group by 1 order by 1")
    assert placed == [("relevo_outbox_p0", 15), ("relevo_outbox_p1", 5)]
    assert pg_store.query("select count(*) from pg_constraint where conname like '%bound'") == [(0,)]


async def test_writers_that_reach_the_end_write_there_and_it_is_cut_all_the_same(
    pg_store: Store, database: Database
) -> None:
    """Rows in the last partition, which has no end: no insert fails, and the next cut has to prove again."""
    await old_days(pg_store, database, days=1)
    end = pg_store.query("select max(from_seq) from relevo_outbox_partitions()")[0][0]
    pg_store.do(f"alter table relevo_outbox alter column seq restart with {end - 2}")
    pg_store.fill(5, start=50)
    settle(pg_store)
    assert (await purge(pg_store, database, outbox_days=9000.0)).cut
    pg_store.fill(1, start=60)
    assert names(pg_store) == ["p0", "p1", "p2", "p3", "p4"]
    placed = pg_store.query("select tableoid::regclass::text, count(*) from relevo_outbox group by 1 order by 1")
    assert placed == [(f"relevo_outbox_p{n}", count) for n, count in ((0, 10), (1, 2), (2, 3), (3, 1))]
    done = await purge(pg_store, database)
    assert whys(done) == {"p0": "", "p1": "", "p2": "", "p3": OPEN, "p4": OPEN}


async def test_new_partitions_are_like_the_old_one(pg_store: Store, database: Database) -> None:
    """Indexes, storage settings, rights, owner; the view shows them; `relevo migrate` finds nothing to do."""
    pg_store.do("alter table relevo_outbox_p0 set (autovacuum_vacuum_threshold = 77)")
    pg_store.do("grant select on relevo_outbox_p0 to public")
    await old_days(pg_store, database)
    kinds = pg_store.query(
        "select c.reloptions, c.relacl::text, c.relowner, (select array_agg(pg_get_indexdef(i.indexrelid, 0, false) "
        "~ 'settled_at IS NULL' order by 1) from pg_index i where i.indrelid = c.oid) "
        "from relevo_outbox_partitions() p join pg_class c on c.oid = p.partition"
    )
    assert len(kinds) == 4 and all(kind == kinds[0] for kind in kinds), kinds
    assert "autovacuum_vacuum_threshold=77" in kinds[0][0] and len(kinds[0][3]) == 2
    assert pg_store.query("select count(*) from relevo_outbox_readable") == [(20,)]
    settings = load(environ={}, overrides={"database.url": pg_store.url})
    assert migrate(settings).applied == () and names(pg_store) == ["p0", "p1", "p3", "p4"]


async def test_scheduled_and_held_messages_live_through_a_cut(pg_store: Store, database: Database) -> None:
    """Moved into the new partition when due; a key that was held before the cut drains after it; nothing is dropped
    under it."""
    pg_store.fill(10, keys=1)

    def refuse(message: Any) -> Any:
        return Rejected("no", "the broker says no") if message.payload == b"0" else None

    async with running_relay(pg_store, FakePublisher(answer=refuse)):
        await eventually(lambda: pg_store.unsettled() == 0, what="all are held")
    settle(pg_store, where="true")
    pg_store.do(
        "insert into relevo_scheduled (due_at, event_id, bucket, topic, type, payload) "
        "values (now() - interval '1 second', gen_random_uuid(), 1, 'shop.order', 'shop.order.placed', '7')"
    )
    done = await purge(pg_store, database)
    assert done.cut and whys(done)["p0"] == "has messages that are held"
    assert await database.run(scheduling.move("postgresql", 10)) == 1
    assert pg_store.query("select convert_from(payload, 'UTF8') from relevo_outbox_p1") == [("7",)]
    pg_store.do("update relevo_held_key set state = 'waiting', due_at = now()")
    async with running_relay(pg_store) as running:
        await eventually(lambda: len(running.publisher.log) == 11, what="the scheduled one and the freed ones are out")
    assert running.publisher.payloads(b"k0") == list(range(10))
    assert whys(await purge(pg_store, database))["p0"] == YOUNG, "they were handed over just now"
    settle(pg_store, where="true")
    assert whys(await purge(pg_store, database))["p0"] == ""


async def test_relays_do_it_on_their_schedule_one_at_a_time(pg_store: Store, database: Database) -> None:
    """Three relays look at once, again and again: each cut and drop happens once, under the duty, with its audit."""
    await old_days(pg_store, database)
    pg_store.fill(3)
    settle(pg_store)
    settings = settings_of(pg_store, every_s=0.2)
    relays = [Maintenance(database, uuid4(), settings, 5.0, name=f"r{number}") for number in range(3)]

    async def all_gone() -> bool:
        await asyncio.gather(*(relay.turn() for relay in relays))
        return len(names(pg_store)) == 2

    await eventually(all_gone, what="the old days are gone", every_s=0.05)
    acts = pg_store.query(
        "select action, filter->>'partition', count(*) from relevo_audit where actor like 'relay r%' group by 1, 2"
    )
    assert {(action, name, count) for action, name, count in acts} == {
        ("purge.cut", None, 1),
        *(("purge.partition", f"relevo_outbox_{name}", 1) for name in ("p0", "p1", "p3")),
    }


async def test_who_lost_the_duty_drops_nothing(pg_store: Store, database: Database) -> None:
    """A relay that stood still too long finds its duty with another one: its transaction ends without a change."""
    await old_days(pg_store, database)
    slow = Maintenance(database, uuid4(), settings_of(pg_store, every_s=1.0), 30.0)
    stolen = False

    async def steal(done: Purged) -> None:
        nonlocal stolen
        if not stolen:
            stolen = True
            pg_store.do("update relevo_duty set expires_at = '-infinity'")
            assert await database.run(duties.take(duties.PURGE, uuid4(), 30.0))

    slow._between = steal  # type: ignore[method-assign]
    with pytest.raises(LostOwnershipError):
        await slow.turn()
    assert names(pg_store) == ["p0", "p1", "p3", "p4"]


async def test_the_status_shows_partitions(pg_store: Store, database: Database) -> None:
    """Once there is more than one: what each covers, and since when."""
    settings = settings_of(pg_store)
    assert (await status(database, settings)).partitions == []
    await old_days(pg_store, database)
    shown = (await status(database, settings)).partitions
    assert [each.name for each in shown] == [f"relevo_outbox_p{n}" for n in (0, 1, 3, 4)]
    assert [each.open for each in shown] == [False, False, True, True]
    assert shown[0].oldest_age_s is not None and 29 * 86_400 < shown[0].oldest_age_s < 31 * 86_400


async def test_sqlite_has_none(tmp_path: Any) -> None:
    """Said plainly, before anything is touched."""
    store = sqlite_store(tmp_path / "app.db")
    database = database_for(store.settings)
    for act in (purging.purge(database, settings_of(store), actor="me"), purging.count(database, settings_of(store))):
        with pytest.raises(ConfigError, match="only PostgreSQL has"):
            await act
    await database.aclose()
