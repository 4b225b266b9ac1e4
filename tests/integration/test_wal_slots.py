"""What goes wrong with slots: each case on a real server, in plain words, with a way on that loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from relevo import Outbox
from relevo.cli.main import cli
from relevo.clients.replication import ReplicationConnection, ReplicationError
from relevo.errors import CheckFailedError, ConfigError, MisuseError, RelevoError, SchemaError
from relevo.message import Message
from relevo.ops import slot as slots
from relevo.ops.migrate import migrate
from relevo.outcome import Unconfirmed
from relevo.settings import DatabaseSettings, Settings
from tests.support.private_postgres import PrivatePostgres, private_postgres
from tests.support.relays import FakePublisher
from tests.support.waiting import eventually
from tests.support.wal import WalStore, reading_relay, wal_store

pytestmark = pytest.mark.xdist_group("wal")


def problem(act: Callable[[], object]) -> str:
    """The words of the refusal."""
    with pytest.raises(RelevoError) as caught:
        act()
    assert isinstance(caught.value, SchemaError | CheckFailedError)
    return str(caught.value)


async def stops(store: WalStore) -> str:
    """What a relay says that stops at its start."""
    async with reading_relay(store) as relay:
        await eventually(relay.task.done, what="the relay stops")
        error = relay.task.exception()
    assert isinstance(error, SchemaError)
    return str(error)


async def test_a_dropped_slot(wal: WalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAILURES row 26: dropped under a running relay: it waits and says so; recovered, everything of the table that was
    not settled arrives, and everything that was is not sent again."""
    monkeypatch.setattr("relevo.sources.wal.keeping.BARRIER_S", 0.1)  # what the table is told of is 30, or fewer
    async with reading_relay(wal) as relay:
        wal.fill(30, keys=3)
        await eventually(lambda: len(relay.publisher.log) == 30, what="read")
        await eventually(
            lambda: wal.query("select high_water from relevo_cursor where lane = 0") == [(30,)],
            what="told",
            timeout_s=60,
        )
        slot = wal.slot
        wal.query(f"select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{slot}'")
        await eventually(lambda: _drop(wal, slot), what="dropped by hand")
        wal.fill(30, keys=3, start=30)
        await eventually(
            lambda: "somebody dropped it" in (relay.engine.unreachable.text or ""), what="it says so", timeout_s=40
        )
        assert "slot recover" in (relay.engine.unreachable.text or "") and not relay.task.done()
        assert "is gone" in problem(lambda: slots.check(wal.all_settings))
        assert "is gone" in problem(lambda: slots.create(wal.all_settings))
    report = slots.recover(wal.all_settings)
    assert report.made and report.copied == 30
    wal.fill(30, keys=3, start=60)
    async with reading_relay(wal) as relay:
        await eventually(lambda: len(relay.publisher.log) == 60, what="the rest", timeout_s=60)
        for key in range(3):
            assert relay.publisher.payloads(b"k%d" % key) == list(range(30 + key, 90, 3))


def _drop(store: WalStore, slot: str) -> bool:
    try:
        store.query(f"select pg_drop_replication_slot('{slot}')")
    except psycopg.Error:
        return False
    return True


async def test_a_slot_made_anew_by_hand(wal: WalStore) -> None:
    """FAILURES row 26: it would leave out what was committed in between, so the relay refuses it."""
    slot = wal.slot
    wal.query(f"select pg_drop_replication_slot('{slot}')")
    wal.fill(10)
    wal.query(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    assert "made anew, or advanced by hand" in await stops(wal)
    assert slots.recover(wal.all_settings).copied == 10
    async with reading_relay(wal) as relay:
        await eventually(lambda: len(relay.publisher.log) == 10, what="from the table")


async def test_a_slot_of_somebody_else(wal: WalStore) -> None:
    slot = wal.slot
    wal.query(f"select pg_drop_replication_slot('{slot}')")
    wal.query(f"select pg_create_logical_replication_slot('{slot}', 'test_decoding')")
    assert "plugin 'test_decoding'" in await stops(wal)


async def test_position_row_and_publication(wal: WalStore) -> None:
    """Without its row or its publication nothing is read; `slot create` makes what is missing and takes over from the
    table."""
    wal.fill(5)
    wal.do("delete from relevo_wal_position")
    assert "position row is not" in problem(lambda: slots.check(wal.all_settings))
    assert slots.create(wal.all_settings).copied == 5
    assert not slots.create(wal.all_settings).made  # nothing to do
    wal.do(f"alter publication {wal.slot} set (publish = 'update')")
    assert "under the outbox's own name" in await stops(wal)
    wal.do(f"drop publication {wal.slot}")
    assert "publication" in await stops(wal)
    slots.recover(wal.all_settings)
    async with reading_relay(wal) as relay:
        await eventually(lambda: len(relay.publisher.log) == 5, what="all of it")


async def test_a_crash_between_slot_and_row(wal: WalStore) -> None:
    """`slot recover` killed in its middle is run again."""
    wal.fill(3)
    wal.do("delete from relevo_wal_position")
    wal.query(f"select pg_drop_replication_slot('{wal.slot}')")
    wal.query(f"select pg_create_logical_replication_slot('{wal.slot}', 'pgoutput')")
    report = slots.recover(wal.all_settings)
    assert (report.made, report.copied) == (True, 3)


def test_rights(wal: WalStore) -> None:
    """A role without REPLICATION is told so, whoever asks."""
    wal.do("create role poor login in role pg_read_all_data")
    try:
        settings = wal.all_settings
        settings.database = DatabaseSettings(url=wal.url.replace("relevo@", "poor@"))
        assert 'alter role "poor" replication' in problem(lambda: slots.create(settings))
        assert 'alter role "poor" replication' in problem(lambda: slots.check(settings))
    finally:
        wal.do("drop owned by poor; drop role poor")


def test_no_slot_is_left(wal: WalStore) -> None:
    """max_replication_slots reached: named, with what to do."""
    slots.drop(wal.all_settings)
    made = []
    try:
        for number in range(20):
            try:
                wal.query(f"select pg_create_physical_replication_slot('filler_{number}')")
                made.append(number)
            except psycopg.Error:
                break
        assert "max_replication_slots" in problem(lambda: slots.create(wal.all_settings))
    finally:
        for number in made:
            wal.query(f"select pg_drop_replication_slot('filler_{number}')")
    assert slots.create(wal.all_settings).made


def test_other_databases(tmp_path: Path) -> None:
    """SQLite has no slots; an Outbox without a table says so as well."""
    import sqlite3

    settings = Settings(database=DatabaseSettings(url=f"sqlite:///{tmp_path / 'x.db'}"))
    with pytest.raises(ConfigError, match="PostgreSQL"):
        slots.check(settings)
    settings.relay.source = "wal"
    with pytest.raises(ConfigError):
        migrate(settings)
    with sqlite3.connect(tmp_path / "y.db") as connection, pytest.raises(ConfigError, match="PostgreSQL"):
        connection.execute("create table t (x)")
        Outbox(table=False, allow_autocommit=True).add_message(connection, _message())


def _message() -> Message:
    from tests.unit.test_wal_window import message

    return message(1)


def test_the_commands(wal: WalStore, tmp_path: Path) -> None:
    """`relevo slot` list, check, drop, create."""
    config = tmp_path / "relevo.toml"
    config.write_text(f'[database]\nurl = "{wal.url}"\n[relay]\nsource = "wal"\n')
    runner = CliRunner()

    def run(*arguments: str) -> str:
        result = runner.invoke(cli, ["--config", str(config), "slot", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert f"* {wal.slot}" in run("list")
    assert "is there" in run("check")
    assert "is there" in run("create")
    assert "dropped" in run("drop", "--yes")
    assert "does not exist" in run("list")
    with pytest.raises(CheckFailedError, match="slot create"):
        run("check")
    assert "is made" in run("create")
    assert "is made" in run("recover", "--yes")


async def test_events_without_a_table(wal: WalStore) -> None:
    """Emitted in a transaction that commits they arrive, in one that rolls back they do not; without a slot the append
    refuses, and they cannot be searched for."""
    from tests.unit.test_wal_window import message

    outbox = Outbox(table=False)
    with psycopg.connect(wal.url) as connection:
        outbox.add_message(connection, message(1))
        connection.rollback()
        outbox.add_message(connection, message(2))
        wal.append(connection, b"k", 3)
        outbox.add_message(connection, message(4))
        connection.commit()
        connection.execute("select pg_logical_emit_message(true, 'relevo_outbox', 'garbage')")
        connection.execute("select pg_logical_emit_message(false, 'relevo_outbox', 'garbage')")
        outbox.add_message(connection, message(5))
        connection.commit()
        with pytest.raises(MisuseError):
            outbox.find(connection, message(5).event_id)
    async with reading_relay(wal) as relay:
        await eventually(lambda: len(relay.publisher.log) == 4, what="those committed")
        assert [int(each.payload or b"") for each in relay.publisher.log] == [2, 3, 4, 5]
        await eventually(lambda: wal.query("select state from relevo_held_key") == [("parked",)], what="the garbage")
        assert wal.query("select payload from relevo_held_message") == [(b"garbage",)]
    assert wal.query("select count(*) from relevo_outbox") == [(1,)]
    slots.drop(wal.all_settings)
    with psycopg.connect(wal.url) as connection, pytest.raises(SchemaError, match="slot create"):
        outbox.add_message(connection, message(6))


async def test_events_without_a_table_are_held_with_their_copy(wal: WalStore) -> None:
    """What the broker refuses goes to the table, although the event never stood there, and is sent from it."""
    from relevo.outcome import Rejected
    from tests.unit.test_wal_window import message

    refuse = [True]
    publisher = FakePublisher(lambda each: Rejected("no", "No") if refuse and each.payload == b"2" else None)
    outbox = Outbox(table=False)

    async with await psycopg.AsyncConnection.connect(wal.url) as connection:
        for number in range(6):
            await outbox.add_message(connection, message(number, key=b"k%d" % (number % 2)))
    async with reading_relay(wal, publisher) as relay:
        await eventually(lambda: len(publisher.log) == 4, what="the other key, and what came before")
        await eventually(lambda: wal.query("select count(*) from relevo_held_message") == [(2,)], what="held")
        refuse.clear()
        wal.do("update relevo_held_key set state = 'draining'")
        await eventually(lambda: len(publisher.log) == 6, what="the held ones")
        assert publisher.payloads(b"k0") == [0, 2, 4]
        assert relay.engine.counters.held == 2


async def test_a_slot_that_is_in_use_is_asked_for_again(wal: WalStore) -> None:
    """A connection that was refused the slot may ask once more, and gets it when it is free."""
    first, second = [await ReplicationConnection.connect(wal.settings) for _ in range(2)]
    slot = wal.slot
    try:
        await first.start(slot, "0/0", slot)
        for _ in range(2):
            with pytest.raises(ReplicationError) as refused:
                await second.start(slot, "0/0", slot)
            assert refused.value.sqlstate == "55006"
        first.close()
        await eventually(
            lambda: wal.query(f"select active from pg_replication_slots where slot_name = '{slot}'") == [(False,)],
            what="it is free",
        )
        await second.start(slot, "0/0", slot)
    finally:
        first.close()
        second.close()


@pytest.fixture
def own(postgres_url: str, tmp_path: Path) -> Iterator[Callable[..., PrivatePostgres]]:
    """Servers that a test may break."""
    import contextlib

    with contextlib.ExitStack() as stack:
        count = iter(range(10))
        yield lambda **settings: stack.enter_context(private_postgres(tmp_path / f"pg{next(count)}", **settings))


async def test_wal_level(own: Callable[..., PrivatePostgres]) -> None:
    """A server that is not set up for it says which setting, and what to use until then."""
    server = own(wal_level="replica")
    settings = WalStore(server.url).all_settings
    assert "wal_level is 'replica'" in problem(lambda: migrate(settings))
    assert "relay.source = 'mark'" in problem(lambda: slots.check(settings))


async def test_a_lost_slot(own: Callable[..., PrivatePostgres]) -> None:
    """FAILURES row 26: nobody read for long, and max_slot_wal_keep_size let the server remove WAL: the relay stops at
    once and says so; the table has everything, and after `slot recover` it arrives."""
    server = own(max_slot_wal_keep_size="16MB", wal_keep_size="0", min_wal_size="32MB", max_wal_size="64MB")
    with wal_store(server) as store:
        async with reading_relay(store) as relay:
            store.fill(10, keys=2)
            await eventually(lambda: len(relay.publisher.log) == 10, what="read")
        store.fill(20, keys=2, start=10)

        def lost() -> bool:
            store.do("create table if not exists other (filler text)")
            store.do("insert into other select repeat('x', 1000) from generate_series(1, 20000)")
            server.query("select pg_switch_wal()")
            server.query("checkpoint")
            status = store.query(f"select wal_status from pg_replication_slots where slot_name = '{store.slot}'")
            return status == [("lost",)]

        await eventually(lost, what="the slot is lost", timeout_s=60)
        assert "is lost" in await stops(store)
        assert "lost" in problem(lambda: slots.check(store.all_settings))
        with psycopg.connect(store.url) as connection, pytest.raises(SchemaError, match="missing or lost"):
            Outbox(table=False).add_message(connection, _message())
        report = slots.recover(store.all_settings)
        assert 20 <= report.copied <= 30
        async with reading_relay(store) as relay:
            await eventually(
                lambda: set(relay.publisher.payloads()) >= set(range(10, 30)), what="the rest", timeout_s=60
            )


async def test_a_promoted_standby(own: Callable[..., PrivatePostgres], tmp_path: Path) -> None:
    """A promoted standby without the slot: said in plain words, with both timelines; the table has what is missing."""
    primary = own()
    with wal_store(primary) as store:
        publisher = FakePublisher(lambda each: Unconfirmed("not yet") if int(each.payload or b"") >= 10 else None)
        async with reading_relay(store, publisher) as relay:
            store.fill(20, keys=2)
            await eventually(lambda: len(relay.publisher.log) == 10, what="half of it")
        standby = PrivatePostgres(tmp_path / "standby", primary._bin, {})
        standby.copy_of(primary)
        standby.start()
        try:
            copy = WalStore(store.url.replace(str(primary.port), str(standby.port)))
            assert "standby" in problem(lambda: slots.check(copy.all_settings))
            standby.promote()
            words = await stops(copy)
            assert "was promoted (timeline 1, now 2)" in words and "slot recover" in words
            assert slots.recover(copy.all_settings).copied >= 10
            async with reading_relay(copy) as relay:
                await eventually(
                    lambda: set(relay.publisher.payloads()) >= set(range(10, 20)), what="the rest", timeout_s=60
                )
        finally:
            standby.stop()


async def test_a_restored_copy(wal: WalStore) -> None:
    """Another cluster's positions mean nothing."""
    wal.do("update relevo_wal_position set system_id = '42'")
    assert "another cluster" in await stops(wal)


async def test_advanced_on_another_timeline(wal: WalStore) -> None:
    """Slot and position came along with a promotion: delivery goes on, and the row learns the new timeline. A former
    primary is refused."""
    wal.do("update relevo_wal_position set timeline = 0")
    async with reading_relay(wal) as relay:
        wal.fill(5)
        await eventually(lambda: len(relay.publisher.log) == 5, what="it goes on")
    assert wal.query("select timeline from relevo_wal_position") == [(1,)]
    wal.do("update relevo_wal_position set timeline = 7")
    assert "older primary" in await stops(wal)
