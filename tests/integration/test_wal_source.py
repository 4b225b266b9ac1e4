"""The relay reading the write-ahead log: order, crashes, positions, and what becomes of what cannot be sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from relevo.clients import database_for
from relevo.message import Message
from relevo.ops import status
from relevo.outcome import PublishOutcome, Rejected, Unavailable, Unconfirmed
from relevo.relay.purging import Purge, Purged
from relevo.storage import pausing
from relevo.storage.pausing import Target
from relevo.storage.rows import message_reader
from tests.support.relays import FakePublisher
from tests.support.waiting import eventually
from tests.support.wal import WalStore, reading_relay

pytestmark = pytest.mark.xdist_group("wal")


async def test_everything_committed_is_published_once_and_in_order(wal: WalStore) -> None:
    """Two clean runs one after the other: each event once, and the slot stands where the position row does."""
    async with reading_relay(wal) as relay:
        wal.fill(500, keys=7)
        await eventually(lambda: len(relay.publisher.log) == 500, what="500 published")
    first = relay.publisher.log
    assert wal.position()[1] == 0
    await eventually(lambda: wal.confirmed() == wal.position()[0], what="the slot was told the position")
    wal.fill(100, keys=7, start=500)
    async with reading_relay(wal) as relay:
        await eventually(lambda: len(relay.publisher.log) == 100, what="the rest")
    payloads = [int(message.payload or b"") for message in [*first, *relay.publisher.log]]
    assert payloads == list(range(600))
    assert [message.message().key for message in first[:3]] == [b"k0", b"k1", b"k2"]  # type: ignore[union-attr]


async def test_what_is_carried_equals_what_was_written(wal: WalStore) -> None:
    """Every column through the stream and through the table is the same message."""
    wal.do(
        "insert into relevo_outbox (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type,"
        " aggregate_id, aggregate_version, payload, content_type, headers, created_at) values"
        " ('01890a5d-ac96-774b-bcce-b302099a8057', 7, 'command', 't.x', '\\x00ff', 'T.y', 3, 'agg', 'ünï', 9,"
        " '\\x0001', 'text/plain', '{\"a\": \"b\", \"n\": 1}', '2024-02-29 23:59:59.000001+00'),"
        " ('01890a5d-ac96-774b-bcce-b302099a8058', 8, 'event', 't.x', null, 'T.y', 1, null, null, null, null,"
        " 'application/json', null, '1970-01-01 00:00:00+00')"
    )
    wal.do("select relevo_add('t.z', 'T.z', '{\"x\": 1}', 'key')")
    async with reading_relay(wal) as relay:
        await eventually(lambda: len(relay.publisher.log) == 3, what="all read")
    rows = wal.query(
        "select event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,"
        " payload, content_type, headers::text, created_at from relevo_outbox order by seq"
    )
    expected = [message_reader("postgresql")(row) for row in rows]
    assert [each.message() if not isinstance(each, Message) else each for each in relay.publisher.log] == expected


async def test_rolled_back_and_late_commits(wal: WalStore) -> None:
    """FAILURES rows 1, 2 and 3: what was rolled back never comes, a late commit comes when it commits, and nobody
    waits for it."""
    slow = wal.connect()
    with contextlib.closing(slow), contextlib.closing(wal.connect()) as undone:
        wal.append(slow, b"slow", 1)
        for number in range(50):
            wal.append(undone, b"k", 1000 + number)
        undone.rollback()
        async with reading_relay(wal) as relay:
            wal.fill(20, start=100)
            await eventually(lambda: len(relay.publisher.log) == 20, what="those that committed")
            slow.commit()
            await eventually(lambda: len(relay.publisher.log) == 21, what="the late one")
            assert relay.publisher.payloads() == [*range(100, 120), 1]


async def test_crash_in_the_middle_of_a_transaction(wal: WalStore) -> None:
    """FAILURES rows 23 and 24: five rows in one transaction, batches of three, a crash after the third: the slot was
    not moved past the tail, and exactly the fourth and the fifth come after the restart."""
    publisher = FakePublisher()
    async with reading_relay(wal, publisher, batch_max=3, lease_s=1.0) as relay:

        def after_the_third(message: Message) -> PublishOutcome | None:
            return None if int(message.payload or b"") < 3 else Unconfirmed("it dies here")

        publisher.answer = after_the_third
        wal.fill(5, keys=1)
        await eventually(lambda: wal.position()[1] == 3, what="the position in the middle of the transaction")
        await relay.crash()
    assert publisher.payloads() == [0, 1, 2]
    assert wal.confirmed() <= wal.position()[0]
    async with reading_relay(wal, batch_max=3) as relay:
        await eventually(lambda: len(relay.publisher.log) == 2, what="the rest of the transaction")
    assert relay.publisher.payloads() == [3, 4]
    assert wal.position()[1] == 0


async def test_crash_before_anything_is_saved(wal: WalStore) -> None:
    """FAILURES row 23: published and not saved, then a crash: it all comes again in the same order, nothing is lost."""
    publisher = FakePublisher(gate=asyncio.Event())
    async with reading_relay(wal, publisher, lease_s=1.0) as relay:
        wal.fill(5, keys=1)
        await eventually(lambda: publisher.calls == 1, what="handed to the broker")
        await relay.crash()
    async with reading_relay(wal) as relay:
        await eventually(lambda: len(relay.publisher.log) == 5, what="all of it again")
        assert relay.publisher.payloads() == [0, 1, 2, 3, 4]


async def test_an_idle_outbox_lets_the_slot_advance(wal: WalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAILURES row 25: other tables write, the outbox does not: slot and position follow the WAL all the same."""
    monkeypatch.setattr("relevo.sources.wal.keeping.STATUS_S", 0.2)
    wal.do("create table other (filler text)")
    async with reading_relay(wal):
        await eventually(lambda: wal.query("select active from pg_replication_slots where active"), what="it reads")
        wal.do("insert into other select repeat('x', 1000) from generate_series(1, 5000)")
        end = wal.end_of_wal()
        await eventually(lambda: wal.confirmed() >= end - 1_000_000, what="the slot came along", timeout_s=60)
        assert wal.position()[0] >= wal.confirmed()
        restart = "select (restart_lsn - '0/0')::bigint from pg_replication_slots where slot_name = '" + wal.slot + "'"
        before = wal.query(restart)[0][0]

        def moves_on() -> bool:
            wal.do("insert into other select repeat('x', 1000) from generate_series(1, 2000)")
            wal.do("checkpoint")
            return bool(wal.query(restart)[0][0] > before)

        await eventually(moves_on, what="the server may remove old WAL", timeout_s=60, every_s=0.3)


async def test_a_rejected_message_is_parked_and_the_slot_moves_on(wal: WalStore) -> None:
    """Its key is held with everything behind it, in the transaction that moves the position; others go on; freed, the
    key is drained in order."""
    refuse = {3}

    def answer(message: Message) -> PublishOutcome | None:
        return Rejected("too large", "TooLarge") if int(message.payload or b"") in refuse else None

    async with reading_relay(wal, FakePublisher(answer)) as relay:
        wal.fill(20, keys=5)
        await eventually(lambda: len(relay.publisher.log) == 16, what="all but the held key's")
        assert relay.publisher.payloads(b"k3") == []
        await eventually(lambda: wal.query("select count(*) from relevo_held_message") == [(4,)], what="held")
        assert wal.query("select state, reason from relevo_held_key") == [("parked", "too large: TooLarge")]
        end = wal.end_of_wal()
        wal.fill(10, keys=5, start=20)
        await eventually(lambda: wal.position()[0] > end, what="the position moved past it")
        refuse.clear()
        wal.do("update relevo_held_key set state = 'draining'")
        await eventually(lambda: not wal.query("select 1 from relevo_held_key"), what="drained")
        await eventually(lambda: len(relay.publisher.payloads(b"k3")) == 6, what="all of the key")
    assert relay.publisher.payloads(b"k3") == [3, 8, 13, 18, 23, 28]


async def test_an_unavailable_topic_is_held_and_others_flow(wal: WalStore) -> None:
    """FAILURES row 17: after a moment of grace what cannot be sent goes to the table, the position moves on, and when
    the topic is back everything comes in order."""
    down = {"down"}
    publisher = FakePublisher(lambda message: Unavailable("away") if message.topic in down else None)
    publisher.available = False
    async with reading_relay(wal, publisher) as relay:
        relay.source._grace.others_wait_s = 0.2
        wal.fill(20, keys=4, topic="up")
        wal.fill(20, keys=4, topic="down")
        wal.fill(20, keys=4, topic="up", start=20)
        await eventually(lambda: len(publisher.log) == 40, what="the other topic")
        await eventually(lambda: wal.query("select count(*) from relevo_held_message") == [(20,)], what="held copies")
        assert wal.query("select distinct state, reason from relevo_held_key") == [("waiting", "paused")]
        wal.fill(8, keys=4, topic="down", start=20)
        await eventually(lambda: wal.query("select count(*) from relevo_held_message") == [(28,)], what="those behind")
        down.clear()
        publisher.available = True
        await eventually(lambda: len(publisher.log) == 68, what="all of it", timeout_s=60)
        assert not relay.engine.destinations.paused
    for key in range(4):
        sent = [int(m.payload or b"") for m in publisher.log if m.topic == "down" and m.key == b"k%d" % key]
        assert sent == list(range(key, 28, 4))


async def test_a_short_outage_writes_nothing(wal: WalStore) -> None:
    """While the only topic is away, the stream waits: no copy is made, and everything comes in order."""
    away = {"yes"}
    publisher = FakePublisher(lambda message: Unavailable("away") if away else None)
    publisher.available = False
    async with reading_relay(wal, publisher) as relay:
        wal.fill(50, keys=3)
        await eventually(lambda: relay.engine.destinations.paused, what="paused")
        away.clear()
        publisher.available = True
        await eventually(lambda: len(publisher.log) == 50, what="all of it", timeout_s=60)
        assert wal.query("select count(*) from relevo_held_message") == [(0,)]
    for key in range(3):
        assert publisher.payloads(b"k%d" % key) == list(range(key, 50, 3))


@pytest.mark.parametrize("kind", ["destination", "lane"])
async def test_what_a_person_paused_waits_in_the_table(wal: WalStore, kind: str) -> None:
    """The rows of a paused destination or lane are copied as the position moves; resumed, they come in order."""
    paused_lane = wal.query("select relevo_bucket_of('k1', gen_random_uuid()) % 64")[0][0]
    name = "shop.order" if kind == "destination" else str(paused_lane)
    target = (
        Target("destination", name, topic=name)
        if kind == "destination"
        else Target("lane", name, lane=int(paused_lane))
    )
    database = database_for(wal.settings)
    await database.run(pausing.add(target, "me", "because"))
    async with reading_relay(wal) as relay:
        relay.source._grace.others_wait_s = relay.source._grace.all_wait_s = 0.1
        wal.fill(30, keys=3)
        held = 30 if kind == "destination" else 10
        await eventually(
            lambda: wal.query("select count(*) from relevo_held_message") == [(held,)], what="copies in the table"
        )
        await eventually(lambda: len(relay.publisher.log) == 30 - held, what="the others")
        await database.run(pausing.remove(target, "me", ""))
        await eventually(lambda: len(relay.publisher.log) == 30, what="everything", timeout_s=60)
        assert relay.publisher.payloads(b"k1") == list(range(1, 30, 3))
    await database.aclose()


async def test_one_reads_and_the_other_stands_by(wal: WalStore) -> None:
    """The second relay reads nothing until the first leaves; then nothing comes twice."""
    async with reading_relay(wal, lease_s=30.0) as first:
        wal.fill(20)
        await eventually(lambda: len(first.publisher.log) == 20, what="the first reads")
        async with reading_relay(wal, lease_s=30.0) as second:
            wal.fill(20, start=20)
            await eventually(lambda: len(first.publisher.log) == 40, what="the first reads on")
            assert second.publisher.log == [] and second.ownership.lanes == {}
            first.stop.set()
            await first.task
            first.keeper.cancel()
            await first.ownership.leave()
            wal.fill(20, start=40)
            await eventually(lambda: len(second.publisher.log) == 20, what="the second took over")
        assert second.publisher.payloads() == list(range(40, 60))


async def test_a_reader_that_stood_still_is_refused(wal: WalStore, caplog: pytest.LogCaptureFixture) -> None:
    """FAILURES row 11: its lease ran out and another took over; what it settles then is refused, and its stream was
    ended by the new reader, whose own it does not end to get it back."""
    publisher = FakePublisher(gate=asyncio.Event())
    async with reading_relay(wal, publisher, lease_s=1.0) as frozen:
        wal.fill(10, keys=2)
        await eventually(lambda: publisher.calls >= 1, what="the first has a page")
        frozen.keeper.cancel()  # it no longer renews
        async with reading_relay(wal, lease_s=1.0) as second:
            await eventually(lambda: len(second.publisher.log) == 10, what="the second took over", timeout_s=30)
            epoch = second.ownership.lease.epoch  # type: ignore[union-attr]
            publisher.gate.set()  # type: ignore[union-attr]
            lease = frozen.ownership.lease  # type: ignore[union-attr]
            await eventually(lambda: lease.epoch is None, what="the first noticed")
            wal.fill(10, keys=2, start=10)
            await eventually(lambda: len(second.publisher.log) == 20, what="the second reads on")
            assert wal.query("select epoch from relevo_wal_position") == [(epoch,)]
        assert len(publisher.log) <= 10
        assert caplog.text.count("57P01") == 1, caplog.text
        await frozen.crash()


async def test_truncate_types_and_origins_in_the_stream(wal: WalStore) -> None:
    """FAILURES row 28: what is known to be irrelevant is skipped, even where somebody made the publication wider."""
    slot = wal.slot
    wal.do("create type mood as enum ('sad', 'ok'); create table odd (id integer primary key, feeling mood)")
    wal.do(f"alter publication {slot} add table odd")
    wal.do(f"alter publication {slot} set (publish = 'insert, update, delete, truncate')")
    wal.do("select pg_replication_origin_create('elsewhere_' || current_database())")
    try:
        async with reading_relay(wal) as relay:
            with contextlib.closing(wal.connect()) as connection:
                connection.autocommit = True
                connection.execute("select pg_replication_origin_session_setup('elsewhere_' || current_database())")
                connection.execute("insert into odd values (1, 'sad')")
                with connection.transaction():
                    connection.execute("insert into odd values (2, 'ok')")
                    wal.append(connection, b"k", 1)
                    connection.execute("update odd set feeling = 'ok'; delete from odd where id = 2")
                    wal.append(connection, b"k", 2)
                    connection.execute("truncate odd")
                connection.execute("update relevo_outbox set outcome = 'published', settled_at = now()")
                connection.execute("select pg_logical_emit_message(true, 'somebody else', 'x')")
                connection.execute("alter table relevo_outbox add column note text")
                wal.append(connection, b"k", 3)
                connection.execute("delete from relevo_outbox")
                connection.execute("truncate relevo_outbox")
                wal.append(connection, b"k", 4)
            await eventually(lambda: len(relay.publisher.log) == 4, what="ours, and nothing else")
            assert relay.publisher.payloads() == [1, 2, 3, 4]
    finally:
        wal.do("select pg_replication_origin_drop('elsewhere_' || current_database())")


async def test_a_change_of_the_table_that_cannot_be_read_is_waited_for_in_plain_words(wal: WalStore) -> None:
    """FAILURES row 28: no crash loop and no wrong row; nothing is moved past."""
    async with reading_relay(wal) as relay:
        wal.fill(1)
        await eventually(lambda: len(relay.publisher.log) == 1, what="it reads")
        wal.do(f"alter publication {wal.slot} set table relevo_outbox (seq, event_id)")
        wal.fill(1, start=1)
        await eventually(lambda: "leaves out the column" in (relay.engine.unreachable.text or ""), what="it says so")
        assert len(relay.publisher.log) == 1 and not relay.task.done()


async def test_fifty_thousand_rows_in_one_transaction(wal: WalStore) -> None:
    """FAILURES row 27 (short form): 100 MB in one transaction; what is read and not settled stays a few pages."""
    import psutil

    me = psutil.Process()
    async with reading_relay(wal, batch_max=1000) as relay:
        wal.fill(1, start=-1)
        await eventually(lambda: len(relay.publisher.log) == 1, what="it reads")
        relay.publisher.log = Counted()
        before = me.memory_info().rss
        wal.do(
            "insert into relevo_outbox (event_id, bucket, topic, key, type, payload)"
            " select gen_random_uuid(), i % 1024, 'big', ('k' || i % 100)::bytea, 'T', repeat('x', 2000)::bytea"
            " from generate_series(1, 50000) i"
        )
        await eventually(lambda: len(relay.publisher.log) == 50_000, what="all of them", timeout_s=120)
        assert me.memory_info().rss - before < 50_000_000
    assert wal.position()[1] == 0


class Counted(list[Message]):
    """Keeps nothing: the test's own log would be the memory that it measures."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def append(self, message: Message) -> None:
        self.count += 1

    def __len__(self) -> int:
        return self.count


async def test_the_table_is_told_how_far_it_was_read(wal: WalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is marked row by row, and yet status counts nothing as pending that was settled, and retention takes it
    but for what is held."""
    monkeypatch.setattr("relevo.sources.wal.keeping.STATUS_S", 0.1)
    monkeypatch.setattr("relevo.sources.wal.keeping.BARRIER_S", 0.1)
    settings = wal.all_settings
    settings.retention.outbox_days = 1e-9
    settings.retention.pause_s = 0.0
    database = database_for(wal.settings)
    refuse = FakePublisher(lambda each: Rejected("no", "No") if each.key == b"k3" else None)
    async with reading_relay(wal, refuse) as relay:
        wal.fill(40, keys=5)
        await eventually(lambda: len(relay.publisher.log) == 32, what="published")

        async def pending() -> int:
            return (await status.status(database, settings)).pending.count

        await eventually(lambda: _none(pending), what="nothing is pending", timeout_s=60)

        async def nothing_to_do(done: Purged) -> None: ...

        with contextlib.closing(wal.connect()) as late:
            wal.append(late, b"late", 1000)  # not committed: it must survive what goes by number
            wal.fill(1, start=2000)
            purge = Purge(database, settings, "delete", nothing_to_do, Purged())
            await eventually(lambda: _purged(purge, wal), what="all but what is held or new", timeout_s=60)
            assert wal.query("select count(*) from relevo_outbox where outcome = 'held'") == [(8,)]
            late.commit()
        await eventually(lambda: 1000 in relay.publisher.payloads(), what="the late one")
    await database.aclose()


async def _none(pending: Callable[[], Awaitable[int]]) -> bool:
    return await pending() == 0


async def _purged(purge: Purge, store: WalStore) -> bool:
    await purge.outbox()
    return bool(store.query("select count(*) <= 9 from relevo_outbox")[0][0])


@pytest.mark.soak
async def test_a_million_rows_in_one_transaction(wal: WalStore) -> None:
    """FAILURES row 27: memory stays bounded, whatever the size of a transaction."""
    import psutil

    me = psutil.Process()
    async with reading_relay(wal, batch_max=2000, lease_s=15.0) as relay:
        relay.publisher.log = Counted()
        wal.fill(1)
        await eventually(lambda: len(relay.publisher.log) == 1, what="it reads")
        before, most = me.memory_info().rss, 0
        wal.do(
            "insert into relevo_outbox (event_id, bucket, topic, key, type, payload)"
            " select gen_random_uuid(), i % 1024, 'big', ('k' || i % 10000)::bytea, 'T', repeat('x', 300)::bytea"
            " from generate_series(1, 1000000) i"
        )

        def arrived() -> bool:
            nonlocal most
            most = max(most, me.memory_info().rss)
            return len(relay.publisher.log) == 1_000_001

        started = asyncio.get_running_loop().time()
        await eventually(arrived, what="all of them", timeout_s=600, every_s=0.2)
        took = asyncio.get_running_loop().time() - started
        print(f"1,000,000 rows in one transaction: {took:.0f} s, {(most - before) / 1e6:.0f} MB more than before")
        assert most - before < 60_000_000
    assert wal.position()[1] == 0
