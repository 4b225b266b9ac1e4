"""What may happen to a move into or out of `wal` while it is under way: others that act, stand still, or come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import ConfigError, LostOwnershipError, SchemaError, UnreachableError
from relevo.ids import uuid7
from relevo.ops import jobs, moving, slot
from relevo.ops.moving_plan import plan
from relevo.ops.status import status
from relevo.ports.database import Database
from relevo.relay.service import Relay
from relevo.script import Script
from relevo.settings import Settings
from relevo.sources.wal import tail
from relevo.storage import duties, moving_wal
from tests.integration.test_source_move import KEYS, TOPIC, arrived, in_order, moved, settings_of
from tests.support.moves import SLOTS, WAYS, Dying, Killed, account, emit, source
from tests.support.private_postgres import PrivatePostgres, private_postgres
from tests.support.relays import Store, postgres_store
from tests.support.waiting import eventually, eventually_sync
from tests.support.wal import wal_database, wal_server  # noqa: F401 - a fixture

pytestmark = pytest.mark.xdist_group("wal")


@pytest.fixture
def store(wal_server: PrivatePostgres) -> Iterator[Store]:  # noqa: F811
    with wal_database(wal_server) as url:
        yield postgres_store(url)


@pytest.fixture
async def database(store: Store) -> AsyncIterator[Database]:
    opened = database_for(store.settings)
    yield opened
    await opened.aclose()


def refused(store: Store) -> bool:
    """Whether an event without a table is refused."""
    with psycopg.connect(store.url) as writer:
        try:
            emit(writer, 99)
        except SchemaError as error:
            assert "nobody reads" in str(error)
            return True
        finally:
            writer.rollback()
    return False


async def heard(move: asyncio.Task[object], said: list[str], text: str) -> None:
    """It said so; raises what ended it before."""

    def found() -> bool:
        if move.done():
            move.result()
        return any(text in each for each in said)

    await eventually(found, what=f"{text!r} is said")


def before_look(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """Do ``act`` in the next move when relays have let go of their lanes and nothing has been looked at."""
    look = moving._Move._look

    async def looked(self: moving._Move, *arguments: object) -> object:
        monkeypatch.undo()
        await act()
        return await look(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(moving._Move, "_look", looked)


async def test_no_event_goes_into_a_slot_that_may_go_as_it_came(
    store: Store, tmp_path: Path, database: Database
) -> None:
    """Until the source is `wal`, a move that dies leaves a slot that the next one drops: an event without a table is
    refused, by whatever snapshot the transaction looks. Afterwards, and after `relevo slot create`, it is taken."""
    settings = settings_of(store, tmp_path)
    with psycopg.connect(store.url) as early:
        early.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        early.execute("select count(*) from relevo_outbox")
        await slot.make_new(database, settings)
        assert refused(store)
        with pytest.raises(SchemaError, match="nobody reads"):
            emit(early, 1)
        early.rollback()
    await asyncio.to_thread(slot.create, settings)
    assert not refused(store), "an operator made it: it is there to stay"
    await asyncio.to_thread(slot.drop, settings)
    await moved(store, settings, "wal")
    assert not refused(store)
    await moved(store, settings, "log")
    assert refused(store)


async def test_a_run_that_stood_still_drops_nothing(store: Store, tmp_path: Path, database: Database) -> None:
    """It wakes up when another run has ended the move, and relays read the slot: neither what it was about to do first
    nor last may touch it."""
    settings = settings_of(store, tmp_path)
    old = await database.run(duties.take(duties.MOVE, uuid7(), -1.0))
    assert old is not None
    await moved(store, settings, "wal")
    before = store.query("select slot, commit_lsn, epoch from relevo_wal_position"), store.query(SLOTS)
    for act in (slot.remove, partial(slot.make_new, settings=settings)):
        with pytest.raises(LostOwnershipError):
            await act(database, fence=lambda: duties.hold(old))
    assert (store.query("select slot, commit_lsn, epoch from relevo_wal_position"), store.query(SLOTS)) == before
    assert not refused(store)


@pytest.mark.parametrize("origin", ["mark", "log"])
async def test_nothing_is_held_when_relays_have_lanes_again(
    store: Store, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    """The move stands still for longer than it may, a relay takes lanes and reads: what the move was about to hold may
    be on its way. It finds out in the transaction that would hold it, and looks again."""
    settings = settings_of(store, tmp_path)
    if origin == "log":
        await moved(store, settings, "log")
    store.fill(20, KEYS, TOPIC)
    first = moving_wal.unsettled
    looked: list[int] = []

    def overslept(origin: str, snapshot: str, after: int, limit: int) -> Script[list[int]]:
        found = yield from first(origin, snapshot, after, limit)
        if not looked:
            store.do("update relevo_lane set epoch = epoch + 2 where lane = 5")  # taken, and given back
        looked.append(int(store.query("select count(*) from relevo_held_message")[0][0]))
        return found

    monkeypatch.setattr(moving_wal, "unsettled", overslept)
    said: list[str] = []
    await moving.move(database, settings, "wal", actor="me", report=said.append)
    assert looked == [0, 0], "nothing was held at first"
    assert any("took lanes" in text and "once more" in text for text in said)
    async with Relay(settings):
        assert in_order(await arrived(settings, 20))


async def test_frozen_while_it_holds_it_loses_its_locks(
    store: Store, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HARD 2: it stands still in the transaction that copies, with the lanes locked. The server ends its session,
    relays have the lanes, and when it wakes up it has copied nothing, and looks again."""
    settings = settings_of(store, tmp_path)
    store.fill(20, KEYS, TOPIC)
    copy = moving_wal.copy
    stood: list[int] = []

    def taken() -> bool:
        try:
            store.do("set lock_timeout = '100ms'; update relevo_lane set epoch = epoch + 2")
        except psycopg.errors.LockNotAvailable:
            stood.append(0)
            return False
        return True

    def frozen(seqs: list[int]) -> Script[None]:
        if not stood:
            eventually_sync(taken, what="relays can have the lanes")
            assert stood, "at first they could not"
        yield from copy(seqs)

    monkeypatch.setattr(moving_wal, "copy", frozen)
    said: list[str] = []
    await asyncio.wait_for(moving.move(database, settings, "wal", actor="me", report=said.append), 60)
    assert any("once more" in text for text in said), said
    async with Relay(settings):
        assert in_order(await arrived(settings, 20))


@pytest.mark.parametrize("way", WAYS)
async def test_a_relay_that_starts_in_the_middle(
    store: Store, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, way: tuple[str, str]
) -> None:
    """It comes when no relay reads, and gets nothing until the source is changed."""
    origin, target = way
    settings = settings_of(store, tmp_path)
    if origin != "mark":
        await moved(store, settings, origin)
    store.fill(20, KEYS, TOPIC)
    second = Relay(settings)

    async def starts() -> None:
        await second.__aenter__()
        await eventually(lambda: store.query("select 1 from relevo_process"), what="it has looked")
        store.fill(20, KEYS, TOPIC, start=20)

    before_look(monkeypatch, starts)
    await asyncio.wait_for(moving.move(database, settings, target, actor="me"), 60)
    assert source(store) == target
    await eventually(lambda: store.query("select 1 from relevo_lane where holder is not null"), what="it has lanes")
    store.fill(5, KEYS, TOPIC, start=40)
    try:
        found = await arrived(settings, 45)
    finally:
        await second.__aexit__(None, None, None)
    assert sorted(payload for _, payload in found) == list(range(45)) and in_order(found)


@pytest.mark.parametrize("way", WAYS)
async def test_a_prepared_transaction_across_the_switch(
    store: Store, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, way: tuple[str, str]
) -> None:
    """Two-phase commit: prepared before the source changes, committed afterwards, by another session."""
    origin, target = way
    settings = settings_of(store, tmp_path)
    if origin != "mark":
        await moved(store, settings, origin)

    async def prepare() -> None:
        with psycopg.connect(store.url) as writer:
            store.append(writer, b"k1", 0)
            if origin == "wal":
                emit(writer, 1, b"k1")
            writer.execute("prepare transaction 'moved'")

    before_look(monkeypatch, prepare)
    move = asyncio.create_task(moving.move(database, settings, target, actor="me"))
    try:
        await eventually(lambda: source(store) == target, what="the source is changed", timeout_s=60)
        store.fill(3, 1, TOPIC, start=10)
    finally:
        with psycopg.connect(store.url, autocommit=True) as other:
            other.execute("commit prepared 'moved'")
    await asyncio.wait_for(move, 60)
    wanted = [0, 1, 10, 11, 12] if origin == "wal" else [0, 10, 11, 12]
    async with Relay(settings):
        found = await arrived(settings, len(wanted))
    assert sorted(payload for _, payload in found) == wanted


async def test_the_slot_waits_for_what_is_prepared(store: Store, tmp_path: Path, database: Database) -> None:
    """A prepared transaction that nobody ends keeps a move into `wal` from its slot: relays read on, as nothing was
    changed, and whoever interrupts it may run it again."""
    settings = settings_of(store, tmp_path)
    with psycopg.connect(store.url) as writer:
        store.append(writer, b"k1", 0)
        writer.execute("prepare transaction 'forgotten'")
    said: list[str] = []
    move = asyncio.create_task(moving.move(database, settings, "wal", actor="me", report=said.append))
    try:
        async with Relay(settings):
            await heard(move, said, "making the slot")
            store.fill(5, KEYS, TOPIC, start=1)
            await arrived(settings, 5)
            assert source(store) == "mark" and not move.done()
            move.cancel()
            await asyncio.gather(move, return_exceptions=True)
    finally:
        with psycopg.connect(store.url, autocommit=True) as other:
            other.execute("commit prepared 'forgotten'")
    await moved(store, settings, "wal")
    async with Relay(settings):
        assert [payload for _, payload in await arrived(settings, 1)] == [0]


async def test_who_sees_the_tables_as_they_were_is_waited_for(
    store: Store, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of repeatable read begins before the switch and emits for the first time after it: by what it sees
    the events are read. So they are: the slot stays until no such transaction is left."""
    settings = settings_of(store, tmp_path)
    await moved(store, settings, "wal")
    said: list[str] = []
    with psycopg.connect(store.url) as early:
        early.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

        async def begin() -> None:
            early.execute("select 1 from relevo_outbox")

        before_look(monkeypatch, begin)
        move = asyncio.create_task(moving.move(database, settings, "mark", actor="me", report=said.append))
        await heard(move, said, "open now")
        assert refused(store), "for all others it is over"
        emit(early, 1)
        early.commit()
    await asyncio.wait_for(move, 60)
    async with Relay(settings):
        assert [payload for _, payload in await arrived(settings, 1)] == [1]


async def test_a_move_ends_beside_events_without_a_table_that_do_not(
    store: Store, tmp_path: Path, database: Database
) -> None:
    """A writer emits without a pause: what comes while the rest is held is held in the switch. All of it that was
    taken arrives, in its order."""
    settings = settings_of(store, tmp_path, **{"relay.batch_max": 500})
    await moved(store, settings, "wal")
    taken: list[int] = []

    def write() -> None:
        with psycopg.connect(store.url) as writer:
            for number in range(100_000):
                try:
                    emit(writer, number, b"k%d" % (number % KEYS))
                except SchemaError:
                    writer.rollback()
                    return
                writer.commit()
                taken.append(number)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        await eventually(lambda: len(taken) > 1_500, what="events are emitted")
        await asyncio.wait_for(moving.move(database, settings, "mark", actor="me"), 60)
    finally:
        await asyncio.to_thread(writing.join, 30)
    assert source(store) == "mark" and not writing.is_alive()
    async with Relay(settings):
        held = "select count(*) from relevo_held_message"
        await eventually(
            lambda: store.unsettled() + store.query(held)[0][0] == 0, what="all settled and sent", timeout_s=60
        )
    found = await account(settings, TOPIC, taken)
    assert not found.explain(store), found.explain(store)


@pytest.mark.parametrize("then", ["mark", "wal"])
async def test_a_move_that_was_given_up_when_the_source_had_changed(
    store: Store, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """What was emitted without a table and not read stands in a slot that nobody reads. `status` says so; whichever way
    the tables are moved next, it becomes rows first."""
    settings = settings_of(store, tmp_path)
    await moved(store, settings, "wal")
    with psycopg.connect(store.url) as late:

        async def emitted() -> None:
            emit(late, 1)

        before_look(monkeypatch, emitted)
        move = asyncio.create_task(moving.move(database, settings, "mark", actor="me"))
        await eventually(lambda: source(store) == "mark", what="the source is changed", timeout_s=60)
        move.cancel()
        await asyncio.gather(move, return_exceptions=True)
        late.commit()
    (running,) = await jobs.listed(database, state="running", limit=10)
    with pytest.raises(ConfigError, match="has not ended"):
        await plan(database, "log")
    await jobs.cancel(database, UUID(running.job_id), actor="me", reason="")
    warnings = (await status(database, settings)).warnings
    assert any("relevo source move mark" in text for text in warnings), warnings
    assert any("without a table" in step for step in (await plan(database, "mark")).steps)
    await moved(store, settings, then)
    assert source(store) == then and store.query(SLOTS) == [(int(then == "wal"),)]
    assert (await plan(database, then)).steps == ()
    async with Relay(settings):
        assert [payload for _, payload in await arrived(settings, 1)] == [1]


@pytest.mark.parametrize("what", ["advanced", "dropped", "made anew"])
@pytest.mark.parametrize("way", [("mark", "wal"), ("wal", "mark")])
async def test_a_slot_that_would_not_send_all_ends_the_move(
    store: Store,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    way: tuple[str, str],
    what: str,
) -> None:
    """By hand, between the plan and the look: what the slot does not send any more is not taken for settled."""
    origin, target = way
    settings = settings_of(store, tmp_path)
    if origin == "wal":
        await moved(store, settings, "wal")
    name = slot.listing(settings)[0]

    async def tampered() -> None:
        store.fill(20, KEYS, TOPIC)
        if what == "advanced":
            store.do(f"select pg_replication_slot_advance('{name}', pg_current_wal_lsn())")
        else:
            store.do(f"select pg_drop_replication_slot('{name}')")
        if what == "made anew":
            store.do(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")

    before_look(monkeypatch, tampered)
    with pytest.raises(SchemaError, match=name):
        await asyncio.wait_for(moving.move(database, settings, target, actor="me"), 60)
    assert source(store) == origin
    assert store.unsettled() == 20, "nothing is taken for settled"


async def test_a_stream_that_breaks_is_begun_again(
    store: Store, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the connection of the stream while the move reads: once more, in plain words."""
    settings = settings_of(store, tmp_path)
    await moved(store, settings, "wal")
    store.do(  # 30 MB: more than fits into a connection that nobody reads
        "insert into relevo_outbox (event_id, bucket, topic, type, payload) select gen_random_uuid(), 1, 'big', 'big', "
        "convert_to(repeat('0', 500000), 'UTF8') from generate_series(1, 60)"
    )
    begin = tail.start_replication
    ended: list[int] = []

    async def broken(*arguments: object) -> None:
        await begin(*arguments)  # type: ignore[arg-type]
        if not ended:
            rows = store.query("select pg_terminate_backend(active_pid) from pg_replication_slots where active_pid > 0")
            ended.append(len(rows))

    monkeypatch.setattr(tail, "start_replication", broken)
    said: list[str] = []
    await asyncio.wait_for(moving.move(database, settings, "mark", actor="me", report=said.append), 60)
    assert ended == [1] and any("once more" in text for text in said)
    assert source(store) == "mark" and store.unsettled() == 60


async def test_the_reply_to_the_switch_is_lost(
    store: Store, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is changed, and the run that changed it is told that the server does not answer: it looks, and ends
    what it began."""
    settings = settings_of(store, tmp_path)
    await moved(store, settings, "wal")
    run = type(database).run

    async def lost(self: Database, script: Script[object], **how: object) -> object:
        result = await run(self, script, **how)  # type: ignore[arg-type]
        if script.gi_code is moving._Move._switch.__code__:
            raise UnreachableError("gone")
        return result

    monkeypatch.setattr(type(database), "run", lost)
    done = await asyncio.wait_for(moving.move(database, settings, "mark", actor="me"), 60)
    assert done is not None and source(store) == "mark" and store.query(SLOTS) == [(0,)]
    assert store.query("select distinct state from relevo_job") == [("done",)]


async def killed_at(store: Store, settings: Settings, target: str, call: int, *, committed: bool) -> bool:
    """Move, and die at that call of the database; false if it ended before. Its leases are over afterwards."""
    database = database_for(store.settings)
    dying = Dying(database, call, committed=committed)
    try:
        await asyncio.wait_for(moving.move(dying, settings, target, actor="me"), 60)  # type: ignore[arg-type]
    except Killed:
        pass
    finally:
        await database.aclose()
    store.do("update relevo_duty set expires_at = '-infinity'")
    store.do("update relevo_wal_position set expires_at = '-infinity'")
    store.do("update relevo_meta set moving_until = null")
    return dying.dead


@pytest.mark.parametrize("committed", [False, True], ids=["before", "committed"])
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
async def test_killed_at_every_call(store: Store, tmp_path: Path, every: int, committed: bool) -> None:
    """HARD 8: the process of a move dies at each of its calls of the database (``every``: each so many), all four ways
    one after the other; events are written before it, after it and after the next run has ended the move. All of them
    arrive once, each key in order."""
    settings = settings_of(store, tmp_path, **{"relay.batch_max": 200})
    written: list[int] = []

    def write() -> None:
        store.fill(3, KEYS, TOPIC, start=len(written))
        written.extend(range(len(written), len(written) + 3))
        if source(store) == "wal":
            with psycopg.connect(store.url) as writer:
                emit(writer, len(written), b"k%d" % (len(written) % KEYS))
            written.append(len(written))

    call, more = 1, True
    while more:
        more = False
        for target in ("wal", "log", "wal", "mark"):
            write()
            more = await killed_at(store, settings, target, call, committed=committed) or more
            write()
            await moved(store, settings, target)
            assert source(store) == target and store.query(SLOTS) == [(int(target == "wal"),)]
            write()
        call += every
    assert call > 40, "it has more calls than that"
    async with Relay(settings):
        held = "select count(*) from relevo_held_message"
        await eventually(
            lambda: store.unsettled() + store.query(held)[0][0] == 0, what="all settled and sent", timeout_s=120
        )
    found = await account(settings, TOPIC, written)
    assert not found.explain(store), found.explain(store)


@pytest.mark.parametrize(("origin", "target", "call"), [("mark", "wal", 30), ("wal", "mark", 20)])
async def test_a_standby_is_promoted_in_the_middle(
    tmp_path: Path, postgres_url: str, origin: str, target: str, call: int
) -> None:
    """The move dies with its primary, between the slot and the switch. On the standby, without the slot: into `wal` the
    same command makes another; out of it, the plan says what to do first."""
    with private_postgres(tmp_path / "primary") as primary:
        store = postgres_store(primary.url)
        settings = settings_of(store, tmp_path)
        store.fill(20, KEYS, TOPIC)
        if origin == "wal":
            await moved(store, settings, "wal")
        store.fill(20, KEYS, TOPIC, start=20)
        standby = PrivatePostgres(tmp_path / "standby", primary._bin, {})
        standby.copy_of(primary)
        standby.start()
        try:
            assert await killed_at(store, settings, target, call, committed=True)
            assert source(store) == origin and store.query("select 1 from relevo_job where state = 'running'")
            end = primary.query("select pg_current_wal_lsn()::text")[0][0]
            await eventually(
                lambda: standby.query(f"select pg_last_wal_replay_lsn() >= '{end}'") == [(True,)], what="it has all"
            )
            primary.stop()
            standby.promote()
            copy = Store(standby.url)
            settings = settings_of(copy, tmp_path)
            copy.fill(10, KEYS, TOPIC, start=40)
            if origin == "wal":
                with pytest.raises(SchemaError, match="slot recover"):
                    await moved(copy, settings, target)
                await asyncio.to_thread(slot.recover, settings)
            await moved(copy, settings, target)
            assert source(copy) == target and copy.query(SLOTS) == [(int(target == "wal"),)]
            async with Relay(settings):
                found = await arrived(settings, 50)
            assert sorted(payload for _, payload in found) == list(range(50)) and in_order(found)
        finally:
            standby.stop()
