"""Moving between the sources `mark` and `log` while relays work: nothing is lost or doubled, order is kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.errors import CancelledJobError, ConfigError, LostOwnershipError
from relevo.ops import jobs, moving
from relevo.ops.migrate import migrate
from relevo.ops.moving import Moved
from relevo.ops.status import status
from relevo.ports.database import Database
from relevo.relay.service import Relay
from relevo.script import Script
from relevo.settings import Settings, load
from relevo.storage import auditing
from relevo.storage import moving as steps
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.schema import create_schema
from tests.support.waiting import eventually

KEYS = 7
TOPIC = "shop.order"


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return sqlite_store(tmp_path / "app.db")
    return postgres_store(request.getfixturevalue("pg_database"))


@pytest.fixture
async def database(store: Store) -> AsyncIterator[Database]:
    opened = database_for(store.settings)
    yield opened
    await opened.aclose()


def settings_of(store: Store, folder: Path, source: str = "mark", **more: Any) -> Settings:
    return load(
        environ={},
        overrides={
            "service": "moved",
            "database.url": store.url,
            "broker.url": f"embedded:{folder / 'broker.db'}",
            "relay.source": source,
            "relay.lease_s": 3.0,
            "relay.send_timeout_s": 0.5,
            "relay.batch_max": 10,
            "relay.poll_max_s": 0.05,
            **more,
        },
    )


async def arrived(settings: Settings, count: int) -> list[tuple[bytes | None, int]]:
    """(key, payload) of what stands in the broker, at least ``count``, in order of arrival, repeats included."""
    subscription = await broker_for(settings.broker.url, {}).subscribe("reader", [TOPIC])
    found: list[tuple[bytes | None, int]] = []

    async def enough() -> bool:
        taken = await subscription.take(1000, 0.05)
        found.extend((each.message.key, int(each.message.payload or b"")) for each in taken)
        await subscription.settle(taken)
        return len(found) >= count

    try:
        await eventually(enough, what=f"{count} messages arrived", timeout_s=60)
    finally:
        await subscription.aclose()
    return found


def in_order(found: list[tuple[bytes | None, int]]) -> bool:
    by_key: dict[bytes | None, list[int]] = {}
    for key, payload in found:
        by_key.setdefault(key, []).append(payload)
    return all(payloads == sorted(payloads) for payloads in by_key.values())


async def moved(store: Store, settings: Settings, target: str) -> Moved | None:
    database = database_for(store.settings)
    try:
        return await asyncio.wait_for(moving.move(database, settings, target, actor="me"), 60)
    finally:
        await database.aclose()


@contextlib.asynccontextmanager
async def writing(store: Store) -> AsyncIterator[list[int]]:
    """Rows one after the other until the block ends; the list grows with what was committed."""
    written: list[int] = []
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            await asyncio.to_thread(store.fill, 5, KEYS, TOPIC, len(written))
            written.extend(range(len(written), len(written) + 5))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.005)

    writer = asyncio.create_task(write())
    try:
        yield written
    finally:
        stop.set()
        await writer


async def test_there_and_back_under_load(store: Store, tmp_path: Path) -> None:
    """HARD 8: a writer writes and two relays relay while the tables go from mark to log and back, twice. Every event
    arrives once, each key in order, and the relays' settings are never touched."""
    settings = settings_of(store, tmp_path)
    async with Relay(settings) as one, Relay(settings) as two, writing(store) as written:
        for target in ("log", "mark", "log", "mark"):
            before = len(written)
            await eventually(lambda before=before: len(written) > before + 50, what="events are written")
            done = await moved(store, settings, target)
            assert done is not None and done.target == target
            assert store.query("select source from relevo_meta") == [(target,)]
        before = len(written)
        await eventually(lambda: len(written) > before + 50, what="events are written")
    async with Relay(settings):
        await eventually(lambda: store.unsettled() == 0, what="all settled", timeout_s=60)
    found = await arrived(settings, len(written))
    assert sorted(payload for _, payload in found) == written, "nothing lost, nothing twice"
    assert in_order(found)
    assert one.health().detail["published"] + two.health().detail["published"] > 0
    actions = store.query("select action, actor from relevo_audit")
    assert actions == [("source.move", "me")] * 4
    assert store.query("select distinct state from relevo_job") == [("done",)]


async def test_what_waits_waits_on_and_what_is_over_stays_over(
    store: Store, tmp_path: Path, database: Database
) -> None:
    """No relay runs: rows are settled and unsettled in turn. After a move there the settled ones are not read, after
    the move back they have markers."""
    settings = settings_of(store, tmp_path)
    store.fill(20, KEYS, TOPIC)
    store.do("update relevo_outbox set settled_at = created_at, outcome = 'published' where seq % 3 = 0 or seq < 5")
    await moved(store, settings, "log")
    assert store.query("select distinct high_water from relevo_cursor") == [(4,)]
    assert (await status(database, settings)).pending.count == store.unsettled()
    waiting = store.query("select count(*) from relevo_outbox where settled_at is null")[0][0]
    async with Relay(settings):
        assert len(await arrived(settings, waiting)) == waiting
    assert store.unsettled() == waiting, "log writes nothing per event"
    done = await moved(store, settings, "mark")
    assert done is not None and done.marked == waiting and store.unsettled() == 0


def slowest(store: Store) -> int:
    """The slowest cursor."""
    return int(store.query("select min(high_water) from relevo_cursor")[0][0])


async def test_indexes_are_those_of_a_new_installation(store: Store, tmp_path: Path) -> None:
    """After a move the tables have the indexes that `relevo migrate` would have built for the target, and no others."""
    settings = settings_of(store, tmp_path)
    fresh = {source: fresh_indexes(store, tmp_path, source) for source in ("mark", "log")}
    for target in ("log", "mark"):
        await moved(store, settings, target)
        assert indexes(store) == fresh[target]
        assert migrate(settings).applied == ()
        assert indexes(store) == fresh[target], "migrate builds nothing that belongs to the other source"


INDEXES = (
    "select tablename, replace(substr(indexdef, strpos(indexdef, ' USING ')), schemaname, ''), "
    "(select indisvalid from pg_index where indexrelid = (schemaname || '.' || indexname)::regclass) "
    "from pg_indexes where tablename like 'relevo_outbox%'"
)


def indexes(store: Store) -> set[tuple[Any, ...]]:
    if store.is_postgres:
        return set(store.query(INDEXES))
    return set(store.query("select name, sql from sqlite_master where type = 'index' and tbl_name = 'relevo_outbox'"))


def fresh_indexes(store: Store, folder: Path, source: str) -> set[tuple[Any, ...]]:
    if not store.is_postgres:
        create_schema(str(folder / f"{source}.db"), source=source)
        return indexes(Store(f"sqlite:///{folder / f'{source}.db'}"))
    schema = f"fresh_{source}"
    migrate(load(environ={}, overrides={"database.url": store.url, "database.schema": schema, "relay.source": source}))
    found = store.query(f"{INDEXES} and schemaname = '{schema}'")
    store.do(f"drop schema {schema} cascade")
    return set(found)


async def test_settings_may_be_old_but_not_wrong(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a move relays start with the settings from before it, and say so; a source that the tables never had is
    refused as ever, and before a move so is its target."""
    with pytest.raises(Exception, match="relevo source move log"):
        async with Relay(settings_of(store, tmp_path, "log")):
            pass
    await moved(store, settings_of(store, tmp_path, "log"), "log")
    async with Relay(settings_of(store, tmp_path, "mark")) as relay:
        assert relay.health().detail["source"] == "log"
    assert "Set relay.source = 'log'" in caplog.text
    async with Relay(settings_of(store, tmp_path, "log")) as relay:
        assert relay.health().detail["source"] == "log"
    if not store.is_postgres:
        with pytest.raises(ConfigError, match="'mark' to 'log', or back"):
            await moved(store, settings_of(store, tmp_path), "wal")
    assert await moved(store, settings_of(store, tmp_path), "log") is None


def an_ancient_relay(store: Store) -> None:
    """A live relay of a version that knows nothing of moves: it does not say what it reads with."""
    until = "clock_timestamp() + interval '1 hour'" if store.is_postgres else "8e12"
    store.do(
        "insert into relevo_process (process_id, role, name, host, pid, version, expires_at) values "
        f"('00000000-0000-0000-0000-000000000001', 'relay', 'ancient', 'box', 1, '0.0', {until})"
    )


async def test_relays_that_do_not_let_go_are_waited_for(store: Store, tmp_path: Path, database: Database) -> None:
    """A relay of a version that knows nothing of moves is named, and nothing changes while it lives; given up, the move
    leaves the relays their lanes at once, and status names what was begun."""
    settings = settings_of(store, tmp_path)
    an_ancient_relay(store)
    said: list[str] = []
    running = asyncio.create_task(moving.move(database, settings, "log", actor="me", report=said.append))
    await eventually(lambda: any("ancient" in text for text in said), what="it says who is waited for")
    report = await status(database, settings)
    assert report.source_move is not None and report.source_move.closed and report.source == "mark"
    with pytest.raises(LostOwnershipError, match="another process"):
        await moved(store, settings, "log")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    report = await status(database, settings)
    assert report.source_move is not None and not report.source_move.closed
    assert any("relevo source move log" in warning for warning in report.warnings)
    store.do("delete from relevo_process")
    assert (await moved(store, settings, "log")) is not None
    assert (await status(database, settings)).source_move is None


async def test_a_move_is_cancelled_as_a_job(store: Store, tmp_path: Path, database: Database) -> None:
    """Another target is refused while a move is open; once it is cancelled, the source is what it was."""
    settings = settings_of(store, tmp_path)
    begun = await database.run(begin_there())
    with pytest.raises(ConfigError, match=f"relevo jobs cancel {begun}"):
        await moved(store, settings, "mark")
    await jobs.cancel(database, begun, actor="me", reason="")
    assert await moved(store, settings, "mark") is None
    assert await database.run(steps.begun(), read_only=True) is None


def begin_there() -> Script[UUID]:
    """A move to log that somebody began, and no more."""
    act = auditing.Act(steps.KIND, "me", "", {"from": "mark", "to": "log"})
    job = yield from auditing.begin(act, rate=None, total=0)
    return job.job_id


async def test_a_lane_that_was_taken_in_between_stops_the_switch(store: Store, database: Database) -> None:
    """The proof by epochs: whoever had a lane after the last marker was set may have settled something since."""
    epochs, owned = await database.run(steps.lanes(), read_only=True)
    assert owned == 0 and await database.run(steps.close("mark", 60.0))
    store.do("update relevo_lane set epoch = epoch + 2 where lane = 3")
    with pytest.raises(LostOwnershipError, match="took lanes"):
        await database.run(steps.switch(database.dialect, "mark", "log", epochs))
    assert store.query("select source from relevo_meta") == [("mark",)]
    epochs, _ = await database.run(steps.lanes(), read_only=True)
    await database.run(steps.reopen())
    with pytest.raises(LostOwnershipError, match="longer than"):
        await database.run(steps.switch(database.dialect, "mark", "log", epochs))
    assert store.query("select count(*) from relevo_cursor") == [(0,)]


async def test_a_row_that_commits_late_is_read_after_the_move(pg_database: str, tmp_path: Path) -> None:
    """FAILURES row 1 in both directions: its number is below everything that was settled when the source changed."""
    store = postgres_store(pg_database)
    settings = settings_of(store, tmp_path)
    with psycopg.connect(store.url) as late, psycopg.connect(store.url) as later:
        store.append(late, b"late", 1000)
        store.fill(10, KEYS, TOPIC)
        async with Relay(settings):
            await eventually(lambda: store.unsettled() == 0, what="the others are settled")
            there = asyncio.create_task(moved(store, settings, "log"))
            await eventually(lambda: store.query("select 1 from relevo_job"), what="the move has begun")
            late.commit()  # an index is built only when nobody has an old transaction open
            await there
            assert 1000 in {payload for _, payload in await arrived(settings, 11)}
            store.append(later, b"later", 2000)
            store.fill(10, KEYS, TOPIC, start=10)
            await eventually(lambda: slowest(store) >= 21, what="the cursors stand beyond it", timeout_s=60)
            back = asyncio.create_task(moved(store, settings, "mark"))
            await eventually(lambda: store.query("select 1 from relevo_job offset 1"), what="the move has begun")
            later.commit()
            await back
            await eventually(lambda: store.unsettled() == 0, what="all settled")


async def test_a_restored_log_goes_on_by_way_of_markers(pg_database: str, tmp_path: Path) -> None:
    """FAILURES row 7, a rebase: in another cluster, whose xids are lower, a relay refuses; after a move to `mark` what
    was handed over is settled by the old cursors, and after the move back rows whose xids were never given here are
    read."""
    store = postgres_store(pg_database)
    settings = settings_of(store, tmp_path)
    store.fill(10, KEYS, TOPIC)
    await moved(store, settings, "log")
    async with Relay(settings):
        await eventually(lambda: slowest(store) == 10, what="the cursors passed all")
    store.fill(5, KEYS, TOPIC, start=10)
    far = "(tx::text::bigint + 4000000000)::text::xid8"
    store.do(f"update relevo_outbox set tx = {far}")
    store.do(
        "update relevo_cursor set snapshot = (select (x + 4000000000) || ':' || (y + 4000000000) || ':' from "
        "(select pg_snapshot_xmin(snapshot::pg_snapshot)::text::bigint x, "
        "pg_snapshot_xmax(snapshot::pg_snapshot)::text::bigint y) s)"
    )
    store.do("update relevo_meta set system_id = '42'")
    with pytest.raises(Exception, match="relevo source move mark"):
        async with Relay(settings):
            pass
    done = await moved(store, settings, "mark")
    assert done is not None and done.marked == 10 and store.unsettled() == 5
    await moved(store, settings, "log")
    assert store.query("select count(*) from relevo_outbox where tx = '2'") == [(15,)]
    async with Relay(settings):
        found = await arrived(settings, 15)
    assert sorted(payload for _, payload in found) == list(range(15))


async def test_a_move_that_waits_is_cancelled(store: Store, tmp_path: Path, database: Database) -> None:
    """`relevo jobs cancel` while it waits for a relay: it ends, and says that the source is what it was."""
    settings = settings_of(store, tmp_path)
    an_ancient_relay(store)
    said: list[str] = []
    running = asyncio.create_task(moving.move(database, settings, "log", actor="me", report=said.append))
    await eventually(lambda: any("ancient" in text for text in said), what="it waits")
    begun = await database.run(steps.begun(), read_only=True)
    assert begun is not None
    await jobs.cancel(database, UUID(begun.job_id), actor="me", reason="")
    store.do("delete from relevo_process")
    with pytest.raises(CancelledJobError, match="what it was"):
        await running
    assert store.query("select source from relevo_meta") == [("mark",)]


async def test_markers_follow_each_cursor(store: Store, database: Database) -> None:
    """A topic with a group of its own has its own cursor, and its rows are judged by that, not by the lane's."""
    store.do("insert into relevo_cursor (lane) select lane from relevo_lane")
    store.fill(6, KEYS, TOPIC)
    store.fill(6, KEYS, "shop.paused")
    everything = "pg_current_snapshot()::text" if store.is_postgres else "'1:1:'"
    if store.is_postgres:
        store.do(f"update relevo_cursor set high_water = 12, snapshot = {everything}")
        store.do(
            "insert into relevo_cursor (lane, topic_group, high_water, snapshot) "
            f"select lane, 'shop.paused', 8, {everything} from relevo_lane"
        )
    else:
        store.do("update relevo_cursor set high_water = 12")
        store.do(
            "insert into relevo_cursor (lane, topic_group, high_water) select lane, 'shop.paused', 8 from relevo_lane"
        )
    page = await database.run(steps.mark(database.dialect, 0, 5))
    assert (page.last, page.seen, page.marked) == (5, 5, 5)
    page = await database.run(steps.mark(database.dialect, 5, 50))
    assert (page.last, page.seen, page.marked) == (12, 7, 3)
    assert [row[0] for row in store.query("select seq from relevo_outbox where settled_at is null")] == [9, 10, 11, 12]
    assert store.query("select count(*) from relevo_outbox where settled_at <> created_at") == [(0,)]


async def test_late_rows_of_an_open_window_are_settled_up_to_its_position(pg_database: str) -> None:
    """While late rows span several pages, those up to the window's position were handed over, although the cursor's own
    snapshot does not show them: without a marker they would be sent again."""
    store = postgres_store(pg_database)
    store.fill(4, KEYS, TOPIC)
    before = store.query("select pg_current_snapshot()::text")[0][0]
    for number in range(4, 8):
        store.fill(1, KEYS, TOPIC, start=number)  # four transactions that the cursor's snapshot does not show
    window = store.query("select pg_current_snapshot()::text")[0][0]
    store.do(
        "insert into relevo_cursor (lane, high_water, snapshot, window_snapshot, window_position) "
        f"select lane, 8, '{before}', '{window}', 6 from relevo_lane"
    )
    database = database_for(store.settings)
    try:
        assert (await database.run(steps.mark(database.dialect, 0, 50))).marked == 6
    finally:
        await database.aclose()
    assert [row[0] for row in store.query("select seq from relevo_outbox where settled_at is null")] == [7, 8]
