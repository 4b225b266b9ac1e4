"""The source ``log`` on PostgreSQL, call by call: late sets, groups of topics, cursors that are not ours any more."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import UnreachableError
from relevo.ports.database import Database
from relevo.ports.source import Disposition, Taken
from relevo.settings import DatabaseSettings
from relevo.sources.log.source import LogSource
from relevo.storage import laning, windowing
from relevo.storage.cursors import Cursor
from tests.support.log_stores import LogStore, log_store
from tests.support.round_trips import round_trips


@pytest.fixture
def store(pg_database: str) -> LogStore:
    return log_store(pg_database)


@pytest.fixture
async def database(store: LogStore) -> AsyncIterator[Database]:
    opened = database_for(store.settings)
    yield opened
    await opened.aclose()


async def owner(database: Database, holder: UUID | None = None) -> LogSource:
    """A source that owns all lanes from now on, whoever had them."""
    holder = holder or uuid4()
    source = LogSource(database, holder, 64, lease_s=600.0)
    lanes = await database.run(laning.acquire(holder, range(64), 600.0))
    await source.assign(lanes)
    return source


def payloads(taken: Taken) -> list[int]:
    return [int(message.payload or b"0") for message in taken.messages]


def free_lanes(store: LogStore) -> None:
    store.do("update relevo_lane set holder = null")


async def test_who_follows_asks_once(store: LogStore) -> None:
    """Window and page in one statement, with what came late; two for a reader that does not know where it stands."""
    with round_trips(store.url) as proxy, contextlib.closing(store.connect()) as late:
        database = database_for(DatabaseSettings(url=proxy.url))
        source = await owner(database)
        store.append(late, b"late", 99)
        asked = []
        for number in range(4):
            store.fill(3, start=10 * number)
            if number == 2:
                late.commit()
            proxy.counted.reset()
            page = await source.take(100, 10**6)
            asked.append(len(proxy.counted.asked))
            expected = list(range(10 * number, 10 * number + 3))
            assert payloads(page) == ([99, *expected] if number == 2 else expected)
            await source.settle(page, {})
        assert asked[1:] == [1, 1, 1] and asked[0] > 1
        proxy.counted.reset()
        assert not await source.take(100, 10**6)
        assert len(proxy.counted.asked) == 1
        await database.aclose()


async def test_a_look_is_the_page_of_a_window_of_its_own(store: LogStore, database: Database) -> None:
    """The same rows, bytes and place as the two statements, also where it is cut and where there is nothing."""
    with contextlib.closing(store.connect()) as open_now:
        store.fill(30)
        store.append(open_now, b"open", 99)
        holder = uuid4()
        lanes = await database.run(laning.acquire(holder, range(64), 600.0))
        now = (await database.run(windowing.window(None), read_only=True)).snapshot
        old, all_seen = Cursor("1:1:", 0), Cursor(now, 10**9)
        for cursor, room, count in ((old, 1000, 30), (old, 7, 7), (Cursor("1:1:", 12), 1000, 30), (all_seen, 1000, 0)):
            reading = windowing.Reading(range(64), None, (), cursor, None, 2**63 - 1)
            given = (holder, lanes, 64, reading, room, 10**6)
            window, rows = await database.run(windowing.look(*given, None), read_only=True, by_index=True)
            assert (len(rows), window.top) == (count, 30)
            reading = dataclasses.replace(reading, window=window.snapshot)
            page = windowing.page("postgresql", holder, lanes, 64, reading, room, 10**6)
            assert rows == await database.run(page, read_only=True, by_index=True)
        with pytest.raises(UnreachableError, match="failover"):
            await database.run(windowing.look(*given, window.timeline + 1), read_only=True, by_index=True)


async def test_a_late_set_of_several_pages_is_gone_on_with(store: LogStore, database: Database) -> None:
    """HARD 5: the owner dies in the middle of a late transaction's pages; the next reads on from there, with the
    snapshot they were read by, and repeats nothing."""
    with contextlib.closing(store.connect()) as late:
        for number in range(35):
            store.append(late, b"k%d" % (number % 20), number)
        store.fill(5, start=100)
        source = await owner(database)
        first = await source.take(10, 10**6)
        assert payloads(first) == list(range(100, 105))
        await source.settle(first, {})
        late.commit()
    store.fill(5, start=200)
    seen: list[int] = []
    for _ in range(2):
        page = await source.take(10, 10**6)
        seen += payloads(page)
        await source.settle(page, {})
    assert store.query("select count(*) > 0 from relevo_cursor where window_snapshot is not null") == [(True,)]
    free_lanes(store)
    source = await owner(database)
    while page := await source.take(10, 10**6):
        seen += payloads(page)
        await source.settle(page, {})
    assert sorted(seen) == [*range(35), *range(200, 205)]
    for key in range(20):
        of_key = [number for number in seen if number < 100 and number % 20 == key]
        assert of_key == sorted(of_key)


async def test_a_paused_topic_has_its_own_cursors_until_it_has_caught_up(store: LogStore, database: Database) -> None:
    """A backlog of a paused topic is passed by the others; resumed, it is read from where it stood; the group ends."""
    groups = "select distinct topic_group from relevo_cursor order by 1"
    source = await owner(database)
    store.fill(50, topic="away")
    store.fill(5, topic="here", start=100)
    page = await source.take(1000, 10**6, without_topics=["away"])
    assert payloads(page) == list(range(100, 105))
    await source.settle(page, {})
    assert not await source.take(1000, 10**6, without_topics=["away"])
    assert store.query(groups) == [("*",), ("away",)]
    assert all(cursor.high_water == 55 for (_, group), cursor in source._windows.settled.items() if group == "*")
    store.fill(5, topic="here", start=200)
    both = await source.take(1000, 10**6)
    assert sorted(payloads(both)) == [*range(50), *range(200, 205)]
    await source.settle(both, {})
    assert not await source.take(1000, 10**6)
    assert not await source.take(1000, 10**6)
    assert store.query(groups) == [("*",)]


async def test_what_was_published_beyond_a_refused_one_is_never_read_again(store: LogStore, database: Database) -> None:
    """Marked in the settling transaction, so that the next owner knows it too; the refused one comes back, alone."""
    store.fill(20, keys=20)
    source = await owner(database)
    page = await source.take(100, 10**6)
    await source.settle(page, {3: Disposition("back")})
    again = await source.take(100, 10**6)
    assert payloads(again) == [3]
    await source.release(again)
    free_lanes(store)
    assert payloads(await (await owner(database)).take(100, 10**6)) == [3]


async def test_a_cursor_that_moved_without_us_is_not_overwritten(store: LogStore, database: Database) -> None:
    """A commit without reply that came through after all, or a failover's history: the lanes are not ours as we knew
    them."""
    store.fill(10, keys=1)
    source = await owner(database)
    page = await source.take(100, 10**6)
    store.do("update relevo_cursor set high_water = 5")
    settled = await source.settle(page, {})
    assert settled.count == 0 and set(page.lanes) <= set(settled.lost)
    assert store.query("select distinct high_water from relevo_cursor") == [(5,)]


async def test_after_a_failover_everything_in_memory_is_forgotten(store: LogStore, database: Database) -> None:
    """HARD 11: another timeline, and nothing that was read before is settled or read on from."""
    store.fill(10)
    source = await owner(database)
    page = await source.take(5, 10**6)
    source._timeline = 42
    with pytest.raises(UnreachableError, match="timeline"):
        await source.settle(page, {})
    with pytest.raises(UnreachableError, match="timeline"):
        await source.settle(await _taken_again(source), {0: Disposition("back")})
    with pytest.raises(UnreachableError, match="timeline"):
        await source.take(5, 10**6)
    assert store.query("select count(*) from relevo_outbox where settled_at is not null") == [(0,)]
    await source.assign(source._lanes)
    assert payloads(await source.take(100, 10**6)) == list(range(10))


async def _taken_again(source: LogSource) -> Taken:
    source._timeline, known = None, source._timeline
    page = await source.take(5, 10**6)
    source._timeline = known
    return page


async def test_a_zombie_reads_and_settles_nothing(store: LogStore, database: Database) -> None:
    """FAILURES row 11: its lanes have another epoch; pages ask for it, settles lock it."""
    store.fill(20, keys=20)
    zombie = await owner(database)
    page = await zombie.take(10, 10**6)
    free_lanes(store)
    new = await owner(database)
    assert not await zombie.take(10, 10**6)
    assert (await zombie.settle(page, {})).count == 0
    assert len(await new.take(100, 10**6)) == 20


async def test_an_idle_source_writes_nothing(store: LogStore, database: Database) -> None:
    """A poll of an outbox where nothing was committed takes no xid: its own commit would open the next window."""
    store.fill(10)
    source = await owner(database)
    await source.settle(await source.take(100, 10**6), {})
    await source.take(100, 10**6)
    with psycopg.connect(store.url, autocommit=True) as other:
        before = other.execute("select pg_current_snapshot()::text, max(saved_at) from relevo_cursor").fetchone()
        for _ in range(20):
            assert not await source.take(100, 10**6)
        after = other.execute("select max(saved_at) from relevo_cursor").fetchone()
    assert before is not None and after is not None and before[1] == after[0]
