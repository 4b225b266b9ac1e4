"""Moving into and out of the source `wal` while relays work: nothing is lost or doubled, order is kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import SchemaError
from relevo.ops import moving
from relevo.ops.moving_plan import plan
from relevo.ops.slot import make_new, remove
from relevo.ops.status import status
from relevo.relay.ownership import Ownership
from relevo.relay.service import Relay
from tests.integration.test_source_move import KEYS, TOPIC, arrived, in_order, moved, settings_of, writing
from tests.support.moves import SLOTS, WAYS, Account, account, emit, side_of, source
from tests.support.private_postgres import PrivatePostgres, private_postgres
from tests.support.relays import Store, postgres_store
from tests.support.waiting import eventually
from tests.support.wal import WalStore, reading_relay, wal_database, wal_server  # noqa: F401 - a fixture

pytestmark = pytest.mark.xdist_group("wal")


@pytest.fixture
def store(wal_server: PrivatePostgres) -> Iterator[Store]:  # noqa: F811
    with wal_database(wal_server) as url:
        yield postgres_store(url)


def held(store: Store) -> int:
    return int(store.query("select count(*) from relevo_held_message")[0][0])


async def test_all_ways_under_load(store: Store, tmp_path: Path) -> None:
    """HARD 8: a writer writes and two relays relay while the tables go each of the four ways, and back again.
    Every event arrives once, each key in order; outside of `wal` there is no slot."""
    settings = settings_of(store, tmp_path)
    async with Relay(settings), Relay(settings), writing(store) as written:
        for target in ("wal", "mark", "log", "wal", "log", "mark"):
            before = len(written)
            await eventually(lambda before=before: len(written) > before + 50, what="events are written")
            done = await moved(store, settings, target)
            assert done is not None and done.target == target and source(store) == target
            assert store.query(SLOTS) == [(int(target == "wal"),)]
        before = len(written)
        await eventually(lambda: len(written) > before + 50, what="events are written")
    async with Relay(settings):
        await eventually(lambda: store.unsettled() + held(store) == 0, what="all settled and sent", timeout_s=60)
    found = await account(settings, TOPIC, written)
    assert not found.explain(store), found.explain(store)


@pytest.mark.parametrize("ways", [("wal", "mark"), ("wal", "log"), ("log", "wal", "log"), ("log", "wal", "mark")])
async def test_what_waits_waits_on_and_what_is_over_stays_over(
    store: Store, tmp_path: Path, ways: tuple[str, ...]
) -> None:
    """No relay runs, rows are settled and unsettled in turn: those that wait are sent once after all moves, the others
    never again."""
    settings = settings_of(store, tmp_path)
    store.fill(20, KEYS, TOPIC)
    store.do("update relevo_outbox set settled_at = created_at, outcome = 'published' where seq % 3 = 0 or seq < 5")
    waiting = store.query("select count(*) from relevo_outbox where settled_at is null")[0][0]
    for target in ways:
        await moved(store, settings, target)
        store.fill(5, KEYS, TOPIC, start=int(store.query("select count(*) from relevo_outbox")[0][0]))
        waiting += 5
    async with Relay(settings):
        found = await arrived(settings, waiting)
        assert in_order(found)
    assert await arrived(settings, 0) == [], "and nothing more came"


@pytest.mark.parametrize("way", WAYS)
async def test_a_transaction_that_is_open_across_the_switch(store: Store, tmp_path: Path, way: tuple[str, str]) -> None:
    """FAILURES row 1: its number is below everything that was settled when the source changed. It commits afterwards,
    and its row is sent once."""
    origin, target = way
    settings = settings_of(store, tmp_path)
    if origin != "mark":
        await moved(store, settings, origin)
    async with Relay(settings):
        with psycopg.connect(store.url) as late:
            store.fill(10, KEYS, TOPIC)
            await arrived(settings, 10)
            said: list[str] = []
            database = database_for(store.settings)
            moving_on = asyncio.create_task(moving.move(database, settings, target, actor="me", report=said.append))
            await eventually(lambda: any("let go" in text for text in said), what="relays are asked to let go")
            store.append(late, b"late", 1000)
            store.fill(10, KEYS, TOPIC, start=10)
            await eventually(lambda: source(store) == target, what="the source is changed", timeout_s=60)
            late.commit()
        await moving_on
        await database.aclose()
        store.fill(5, KEYS, TOPIC, start=20)
        found = await arrived(settings, 16)
    assert sorted(payload for _, payload in found) == [*range(10, 25), 1000]


async def test_who_gets_the_lease_as_the_move_begins_gives_it_back(
    wal: WalStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A relay that stands by and has not heard of the move is given the lease by the one that has. It hears of the move
    when its engine has followed: the lease must not stay with it, for the move waits for it."""
    wal.do("update relevo_wal_position set holder = gen_random_uuid(), expires_at = now() + interval '1 hour'")
    heard = Ownership.tick
    began: list[int] = []
    async with reading_relay(wal) as relay:
        lease = relay.ownership.lease
        assert lease is not None and lease.epoch is None

        async def late(self: Ownership) -> None:
            if lease.epoch is not None and not began:
                began.append(lease.epoch)
                await eventually(lambda: relay.engine._assigned == self.version, what="the engine follows the lease")
                wal.do("update relevo_meta set moving_until = now() + interval '1 hour'")
            await heard(self)

        monkeypatch.setattr(Ownership, "tick", late)
        wal.do("update relevo_wal_position set holder = null")
        await eventually(lambda: began and lease.epoch is None, what="the lease is given back")
        holder = "select holder from relevo_wal_position"  # the lease forgets its epoch before the row does
        await eventually(lambda: wal.query(holder) == [(None,)], what="so that the move may have it")


async def test_the_youngest_transaction_is_waited_for_too(store: Store, tmp_path: Path) -> None:
    """Nothing has ended since it began, so no snapshot names it: what it wrote would be in neither table nor stream."""
    database = database_for(store.settings)
    said: list[str] = []

    side = side_of(database, settings_of(store, tmp_path), said.append)
    with psycopg.connect(store.url) as young:
        (xid,) = young.execute("select pg_current_xact_id()::text::bigint").fetchone() or (0,)
        assert store.query(f"select pg_visible_in_snapshot('{xid}'::xid8, pg_current_snapshot())") == [(False,)]
        waiting = asyncio.create_task(side._until_ended())
        await eventually(lambda: waiting.done() or said, what="it waits")
        assert not waiting.done() and "open now" in said[0]
        young.commit()
        await asyncio.wait_for(waiting, 30)
    await database.aclose()


async def test_events_without_a_table_leave_with_it(store: Store, tmp_path: Path) -> None:
    """What was emitted and not read is held and sent, in its order; what a transaction emits that was open
    during the switch becomes a row; afterwards such an append is refused, and nothing is lost without a word."""
    settings = settings_of(store, tmp_path)
    await moved(store, settings, "wal")
    with psycopg.connect(store.url) as writer, psycopg.connect(store.url) as late:
        emit(writer, 0)
        writer.commit()
        said: list[str] = []
        database = database_for(store.settings)
        moving_on = asyncio.create_task(moving.move(database, settings, "mark", actor="me", report=said.append))
        await eventually(lambda: any("let go" in text for text in said), what="relays are asked to let go")
        emit(late, 2)
        await eventually(lambda: source(store) == "mark", what="the source is changed", timeout_s=60)
        with pytest.raises(SchemaError, match="nobody reads"):
            emit(writer, 9)
        writer.rollback()
        late.commit()
        await asyncio.wait_for(moving_on, 60)
        await database.aclose()
    async with Relay(settings):
        assert [payload for _, payload in await arrived(settings, 2)] == [0, 2]


async def test_the_plan_says_what_is_missing(store: Store, tmp_path: Path, wal_server: PrivatePostgres) -> None:  # noqa: F811
    """Before anything is changed: what will be done, that the slot is gone, that the publication was changed."""
    settings = settings_of(store, tmp_path)
    database = database_for(store.settings)
    try:
        steps = (await plan(database, "wal")).steps
        assert any("slot" in step for step in steps)
        await moved(store, settings, "wal")
        steps = (await plan(database, "mark")).steps
        assert any("drop the slot" in step for step in steps) and any("without a table" in step for step in steps)
        (name,) = store.query("select slot from relevo_wal_position")[0]
        store.do(f"alter publication {name} set (publish = 'update')")
        with pytest.raises(SchemaError, match=r"does not publish inserts.*Nothing was changed"):
            await plan(database, "mark")
        store.do(f"alter publication {name} set (publish = 'insert')")
        store.do(f"select pg_drop_replication_slot('{name}')")
        with pytest.raises(SchemaError, match="relevo slot recover"):
            await plan(database, "mark")
        assert source(store) == "wal"
        assert (await status(database, settings)).source == "wal"
    finally:
        await database.aclose()


async def test_the_plan_names_a_role_that_may_not_replicate(store: Store, tmp_path: Path) -> None:
    """Into and out of `wal`, by the owner of the tables: named, with what a superuser is to do; nothing is changed."""
    settings = settings_of(store, tmp_path)
    store.do("create role poor login")
    store.do(
        "do $$ declare t text; begin for t in select tablename from pg_tables where schemaname = 'public' loop "
        "execute format('alter table %I owner to poor', t); end loop; end $$"
    )
    store.do("grant all on all tables in schema public to poor; grant create on schema public to poor")
    poor_settings = settings_of(Store(store.url.replace("relevo@", "poor@")), tmp_path)
    poor = database_for(poor_settings.database)
    try:
        with pytest.raises(SchemaError, match=r'alter role "poor" replication.*Nothing was changed'):
            await plan(poor, "wal")
        with pytest.raises(SchemaError, match='alter role "poor" replication'):
            await moving.move(poor, settings, "wal", actor="me")
        assert source(store) == "mark" and store.query("select count(*) from relevo_job") == [(0,)]
        assert (await plan(poor, "log")).steps, "what needs no such right is allowed"
        await moved(store, settings, "wal")
        with pytest.raises(SchemaError, match=r'alter role "poor" replication.*Nothing was changed'):
            await plan(poor, "mark")
        store.do("alter role poor replication")
        with pytest.raises(SchemaError, match=r'owner to "poor".*Nothing was changed'):
            await plan(poor, "mark")
        (name,) = store.query("select slot from relevo_wal_position")[0]
        store.do(f"grant create on database {store.url.rpartition('/')[2]} to poor")
        store.do(f"alter publication {name} owner to poor")
        done = await asyncio.wait_for(moving.move(poor, poor_settings, "mark", actor="me"), 60)
        assert done is not None and source(store) == "mark" and store.query(SLOTS) == [(0,)]
    finally:
        await poor.aclose()
        store.do("reassign owned by poor to relevo; drop owned by poor; drop role poor")


async def test_the_plan_names_a_server_that_is_not_set_up(tmp_path: Path, postgres_url: str) -> None:
    """`wal_level`, and slots that are all taken; nothing is changed."""
    for setting, words in (
        ({"wal_level": "replica"}, "wal_level is 'replica'"),
        (
            {"max_replication_slots": 0},
            "all 0 replication slots",
        ),
    ):
        with private_postgres(tmp_path / str(words[-5:]), **setting) as server:
            store = postgres_store(server.url)
            settings = settings_of(store, tmp_path)
            database = database_for(store.settings)
            try:
                with pytest.raises(SchemaError, match=rf"{words}.*Nothing was changed"):
                    await plan(database, "wal")
                with pytest.raises(SchemaError, match=words):
                    await moving.move(database, settings, "wal", actor="me")
                assert source(store) == "mark" and store.query("select count(*) from relevo_job") == [(0,)]
                assert store.query("select count(*) from pg_publication") == [(0,)]
            finally:
                await database.aclose()


PROBES = {
    ("mark", "wal"): ("source.prepared", "source.closed", "source.held", "source.switching", "source.switched"),
    ("wal", "mark"): (
        *("source.prepared", "source.closed", "source.held", "source.switching", "source.switched", "source.tidied"),
    ),
    ("log", "wal"): ("source.prepared", "source.switching"),
    ("wal", "log"): ("source.closed", "source.switching", "source.tidied"),
}


@pytest.mark.parametrize("way", list(PROBES), ids=lambda way: "-".join(way))
async def test_killed_at_each_probe_and_run_again(store: Store, tmp_path: Path, way: tuple[str, str]) -> None:
    """HARD 8, 24: the move is killed with SIGKILL at one probe after the other, under load, and run again: no event is
    lost, doubled or out of order. (The exit code proves that it died, the probe where.)"""
    origin, target = way
    settings = settings_of(store, tmp_path, **{"relay.batch_max": 100})
    config = tmp_path / "relevo.toml"
    config.write_text(
        f'[database]\nurl = "{store.url}"\n[broker]\nurl = "{settings.broker.url}"\n[relay]\nlease_s = 1.0\n'
        "send_timeout_s = 0.2\n"
    )
    if origin != "mark":
        await moved(store, settings, origin)
    command = [sys.executable, "-m", "relevo", "--config", str(config), "source", "move", target, "--yes"]
    async with Relay(settings), writing(store) as written:
        for probe in PROBES[way]:
            environ = {**os.environ, "RELEVO_PROBE": f"{probe}=kill:1"}
            died = await asyncio.to_thread(subprocess.run, command, env=environ, timeout=60, capture_output=True)
            assert died.returncode == -9, f"{probe}: {died.stderr.decode()}"
            before = len(written)
            await eventually(lambda before=before: len(written) > before + 20, what="events are written")
        again = await asyncio.to_thread(subprocess.run, command, timeout=60, capture_output=True)
        assert again.returncode == 0 and source(store) == target, again.stderr.decode()
        assert store.query(SLOTS) == [(int(target == "wal"),)]
    async with Relay(settings):
        found = await account(settings, TOPIC, written)
    assert not found.explain(store), found.explain(store)


async def test_status_names_a_slot_that_was_left_behind(store: Store, tmp_path: Path) -> None:
    """A move that ended half-way leaves a slot that nobody reads and that keeps the WAL: `status` says so and what to
    do, until it is gone."""
    settings = settings_of(store, tmp_path)
    database = database_for(store.settings)
    try:
        assert not any("slot" in warning for warning in (await status(database, settings)).warnings)
        await make_new(database, settings)
        found = [warning for warning in (await status(database, settings)).warnings if "replication slot" in warning]
        assert len(found) == 1 and "'mark'" in found[0] and "relevo slot drop" in found[0]
        await remove(database)
        assert not any("slot" in warning for warning in (await status(database, settings)).warnings)
    finally:
        await database.aclose()


async def test_the_account_would_notice(store: Store, tmp_path: Path) -> None:
    """HARD 24: what is missing, repeated or out of order is told, with what the tables were read by."""
    settings = settings_of(store, tmp_path)
    store.fill(3, KEYS, TOPIC)
    await moved(store, settings, "wal")
    store.fill(3, KEYS, TOPIC, start=3)
    found = [(b"a", 0), (b"a", 2), (b"a", 1), (b"b", 2), (b"b", 4), (b"b", 5)]
    told = Account(list(range(6)), found).explain(store)
    assert "missing: 1: [3]" in told and "repeated: 1: [2]" in told and "passed: 1: [1]" in told
    assert "payload 3: seq 4" in told and "after the moves wal" in told
    assert Account([0], [(b"a", 0)]).explain(store) == ""
