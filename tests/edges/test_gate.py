"""A suspect does not stop its process: neither while another process runs it, nor while slow handlers run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from relevo import Backoff, Consumer, Event
from relevo.consumer.gate import Gate
from relevo.message import Message
from relevo.storage import holding
from tests.support.consumers import (
    FAST,
    effects,
    held,
    inbox,
    insert,
    journal,
    make_effects,
    order,
    running,
)
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.waiting import eventually, eventually_sync

LONG_S = 3600.0
SHORT_S = 0.05


async def test_a_suspect_begins_beside_what_has_run_for_the_grace() -> None:
    """An ordinary handler that does not end keeps neither the suspect out, nor those that come after it."""
    gate = Gate(grace_s=SHORT_S)
    async with gate.beside_others(), asyncio.timeout(20):
        async with gate.alone("a suspect"):
            assert gate.snapshot() | {"closed_s": 0} == {
                "running": 2,
                "waiting": 0,
                "suspects_waiting": 0,
                "alone": "a suspect",
                "last_attempt": False,
                "closed_s": 0,
            }
            await eventually(lambda: gate.snapshot()["alone"] is None, what="it has run for the grace")
            async with gate.beside_others(), gate.alone("another"):
                assert gate.snapshot()["running"] == 4
    assert gate.snapshot()["running"] == 0


async def test_a_suspect_is_alone_for_the_grace() -> None:
    """What comes meanwhile waits, and is let in when the suspect ends, before the next suspect begins."""
    gate, log = Gate(grace_s=LONG_S), []

    async def ordinary(name: str) -> None:
        async with gate.beside_others():
            log.append(name)

    async def suspect(name: str) -> None:
        async with gate.alone(name):
            log.append(name)

    async with gate.alone("the first"):
        tasks = [asyncio.create_task(suspect("the second"))]
        await eventually(lambda: gate.snapshot()["suspects_waiting"] == 1, what="it waits")
        tasks += [asyncio.create_task(ordinary(name)) for name in ("a", "b")]
        await eventually(lambda: gate.snapshot()["waiting"] == 2, what="they wait")
        assert log == []
    await asyncio.gather(*tasks)
    assert log == ["a", "b", "the second"]


async def test_a_last_attempt_is_strictly_alone() -> None:
    """It waits until nothing runs, lets others in between, and keeps them out until it ends."""
    gate, begun, may_end = Gate(grace_s=SHORT_S), asyncio.Event(), asyncio.Event()

    async def last() -> None:
        async with gate.alone("the last", last=True):
            assert gate.snapshot()["running"] == 1
            begun.set()
            await may_end.wait()

    async with asyncio.timeout(20):
        async with gate.beside_others():
            task = asyncio.create_task(last())
            for _ in range(3):
                async with gate.alone("a suspect with more attempts"), asyncio.timeout(20):
                    assert not begun.is_set()
                async with gate.beside_others():
                    assert not begun.is_set()
        await begun.wait()
        waiting = asyncio.create_task(_beside(gate))
        await asyncio.sleep(SHORT_S * 3)  # longer than any grace
        assert not waiting.done() and gate.snapshot()["last_attempt"]
        may_end.set()
        await asyncio.gather(task, waiting)


async def test_a_gate_that_stays_closed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.consumer.gate.PROBLEM_S", 0.0)
    gate = Gate()
    assert gate.problem is None
    async with gate.alone("message 7", last=True):
        assert gate.problem is not None and "message 7 has run alone" in gate.problem
    assert gate.problem is None


@pytest.mark.parametrize("side", ["beside", "alone", "last"])
@pytest.mark.parametrize("when", ["closed", "as it opens"])
async def test_a_wait_at_the_gate_that_is_cancelled_leaves_nothing(side: str, when: str) -> None:
    gate = Gate(grace_s=LONG_S)
    async with gate.alone("the first"):
        task = asyncio.create_task(_beside(gate) if side == "beside" else _alone(gate, side == "last"))
        await eventually(lambda: gate.snapshot()["waiting"] + gate.snapshot()["suspects_waiting"], what="it waits")
        if when == "closed":
            task.cancel()
            await asyncio.wait([task])
    task.cancel()
    await asyncio.wait([task])
    async with asyncio.timeout(10), gate.alone("the next", last=True):
        assert gate.snapshot()["running"] == 1
    async with asyncio.timeout(10), gate.beside_others():
        pass
    assert gate.snapshot()["running"] == 0


async def _beside(gate: Gate) -> None:
    async with gate.beside_others():
        pass


async def _alone(gate: Gate, last: bool) -> None:
    async with gate.alone(last=last):
        pass


# -- Relevo's own statements in a handler's transaction

KINDS = [
    *(Session, Connection, AsyncSession, AsyncConnection),
    *(psycopg.Connection, psycopg.AsyncConnection, asyncpg.Connection),
]
ASYNC = (AsyncSession, AsyncConnection, psycopg.AsyncConnection, asyncpg.Connection)
SHOW = "select current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__.split('.')[0]}-{kind.__name__}")
@pytest.mark.parametrize("theirs", ["not set", "set"])
async def test_the_handler_s_statements_keep_the_application_s_bounds(
    pg_store: Store, kind: Any, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way it runs: alone, in a batch, drained, as a suspect. A batch bounds statements of handlers where the
    application does not say how long they wait."""
    if theirs == "set":
        name = pg_store.url.rpartition("/")[2]
        pg_store.do(f"alter database {name} set lock_timeout = '7s'")
        pg_store.do(f"alter database {name} set idle_in_transaction_session_timeout = '77s'")
    found: dict[int, list[tuple[str, str]]] = {}
    failed = threading.Event()

    def note(event: Event[Any], rows: Any) -> None:
        found.setdefault(event.data.order_id, []).append(tuple(rows))
        if event.data.order_id == 4 and not failed.is_set():
            failed.set()
            raise RuntimeError("drained next time")

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        note(event, tx.execute(SHOW if kind is psycopg.Connection else text(SHOW)).fetchone())

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        if kind is asyncpg.Connection:
            note(event, await tx.fetchrow(SHOW))
        elif kind is psycopg.AsyncConnection:
            note(event, await (await tx.execute(SHOW)).fetchone())
        else:
            note(event, (await tx.execute(text(SHOW))).fetchone())

    handler = asynchronous if kind in ASYNC else sync
    handler.__annotations__["tx"] = kind
    consumer, broker = Consumer("billing", ["shop.order"], retry=FAST, inline_retry_s=0.0), FakeBroker()
    consumer.on(OrderPlaced)(handler)
    messages = [order(number, f"k{number}") for number in (1, 2, 3, 4)]
    suspect(pg_store, messages[2])
    broker.append(messages[0])
    async with running(consumer, pg_store, broker, lease_s=6.0):
        await eventually(broker.all_settled, what="1 ran by itself")
        broker.append(*messages[1:3], messages[3], order(5, "k5"))
        await eventually(lambda: found.get(5) and len(found.get(4, ())) >= 2, what="all ran, 4 again when drained")
    idle = "77s" if theirs == "set" else "2min"
    alone, batch = (("7s", idle), ("7s", idle)) if theirs == "set" else (("0", idle), ("500ms", idle))
    assert found[1] == [alone] and found[3] == [alone], "by itself, and as a suspect"
    assert found[4][-1] == alone, "drained"
    assert found[2][0] in (alone, batch) and found[5][0] in (alone, batch)


def test_the_bounds_hold_with_and_without_a_row(pg_store: Store) -> None:
    """``held.lock_key_soon`` bounds the statement after it, whether or not the key is held; ``inbox.insert_soon`` gives
    the lock time-out back. ``inbox.insert_live`` is both."""
    from relevo.catalog import Catalog
    from relevo.storage.handles import handle_for
    from relevo.storage.inboxing import Bounds

    catalog, bounds = Catalog("postgresql", None, "relevo_"), Bounds(123, 45_000)
    pg_store.do(
        "insert into relevo_held_key (side, consumer, topic, key, bucket, state, reason) "
        "values ('consumer', 'billing', 't', 'held', 1, 'parked', 'r')"
    )
    with contextlib.closing(pg_store.connect()) as connection:
        handle = handle_for(connection)
        for key in (b"held", b"live"):
            connection.execute("set lock_timeout = '3s'")
            id = holding.KeyId("consumer", "billing", "t", key)
            params = {**id.params(), **bounds.params()}
            assert len(handle.execute(catalog.text("held.lock_key_soon"), params)) == (key == b"held")
            assert connection.execute(SHOW).fetchone() == ("123ms", "45s")
            row = {"consumer": "billing", "event_id": str(uuid4()), "generation": 0, **bounds.params()}
            assert len(handle.execute(catalog.text("inbox.insert_soon"), row)) == 1
            assert connection.execute(SHOW).fetchone() == ("3s", "45s")
            assert handle.execute(catalog.text("inbox.insert_soon"), row) == []
            connection.commit()
            assert connection.execute(SHOW).fetchone() == ("3s", "0")
            connection.commit()
            live = {**params, "event_id": str(uuid4())}
            assert len(handle.execute(catalog.text("inbox.insert_live"), live)) == (key == b"live")
            assert connection.execute(SHOW).fetchone() == ("3s" if key == b"live" else "123ms", "45s")
            assert handle.execute(catalog.text("inbox.insert_live"), live) == [], "held, or there already"
            connection.commit()
            assert connection.execute(SHOW).fetchone() == ("3s", "0")
            connection.commit()


def test_one_statement_finds_a_key_held_and_live(pg_store: Store) -> None:
    """``inbox.insert_live`` waits for who has the key's row, within its bounds, and sees what became of it."""
    from relevo.catalog import Catalog
    from relevo.clients.sqlstate import sqlstates
    from relevo.storage.handles import handle_for
    from relevo.storage.inboxing import Bounds

    text = Catalog("postgresql", None, "relevo_").text("inbox.insert_live")
    pg_store.do(
        "insert into relevo_held_key (side, consumer, topic, key, bucket, state, reason) "
        "values ('consumer', 'billing', 't', 'k', 1, 'parked', 'r')"
    )
    id = holding.KeyId("consumer", "billing", "t", b"k")

    def inserted(bounds: Bounds) -> int:
        with contextlib.closing(pg_store.connect()) as connection:
            params = {**id.params(), "event_id": str(uuid4()), **bounds.params()}
            found = handle_for(connection).execute(text, params)
            connection.commit()
            return len(found)

    with contextlib.closing(pg_store.connect()) as other, ThreadPoolExecutor() as threads:
        for end, expected in ((other.rollback, 0), (other.commit, 1)):
            other.execute("delete from relevo_held_key")
            with pytest.raises(Exception) as failed:
                inserted(Bounds(100))
            assert "55P03" in sqlstates(failed.value)
            waits = threads.submit(inserted, Bounds(60_000))
            eventually_sync(lambda: pg_store.query(WAITING), what="somebody waits for the lock")
            end()
            assert waits.result(30) == expected


WAITING = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


# -- what runs in another process just now


def suspect(store: Store, message: Message, attempts: int = 0) -> None:
    """As if another process had taken it and died, or still runs it."""
    store.do(
        "insert into relevo_journal (consumer, event_id, owner, attempts) "
        f"values ('billing', '{message.event_id}', '{uuid4()}', {attempts})"
    )


@contextlib.contextmanager
def under_way(store: Store, message: Message) -> Iterator[Any]:
    """Another process's transaction that runs ``message``, not committed."""
    with contextlib.closing(store.connect()) as twin:
        twin.execute(
            "insert into relevo_inbox (consumer, event_id, generation, outcome) "
            f"values ('billing', '{message.event_id}', 0, 'done')"
        )
        yield twin


def consumers_of(*, batch: int | None, runs: list[tuple[str, int, int]]) -> list[Consumer]:
    made = []
    for name in ("billing", "mails"):
        consumer = Consumer(name, ["shop.order"], retry=FAST, batch=batch)

        @consumer.on(OrderPlaced)
        def handle(event: Event[OrderPlaced], tx: psycopg.Connection) -> None:
            runs.append((event.consumer, event.data.order_id, event.attempt))
            insert(tx, event.data.order_id, event.consumer)

        made.append(consumer)
    return made


@contextlib.asynccontextmanager
async def both(store: Store, consumers: list[Consumer], **settings: Any) -> AsyncIterator[tuple[Any, list[FakeBroker]]]:
    """Both consumers in one process, each with a log of its own that has the same messages."""
    brokers = [FakeBroker(), FakeBroker()]

    class Either:
        capabilities, url = brokers[0].capabilities, brokers[0].url

        async def subscribe(self, consumer: str, topics: Any, **options: Any) -> Any:
            return await brokers[consumer == "mails"].subscribe(consumer, topics, **options)

    async with running(consumers, store, Either(), **settings) as one:
        yield one, brokers


def handled(store: Store, consumer: str) -> set[int]:
    return {row[0] for row in store.query(f"select number from effect where what = '{consumer}'")}


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("lock_timeout", ["0", "1min", pytest.param("2s", marks=pytest.mark.soak)])
@pytest.mark.parametrize("way", ["suspect", "last attempt", "attempts used up", "alone", "batch"])
async def test_only_the_key_that_runs_elsewhere_waits(pg_store: Store, way: str, lock_timeout: str, ends: str) -> None:
    """Key k's message is under way in another process for as long as it likes. Its next message waits behind it; all
    other keys, and the other consumer, go on; no attempt is spent; the database is not at fault. Then it is done there,
    and not repeated here; or it is not, and runs here."""
    make_effects(pg_store)
    pg_store.do(f"alter database {pg_store.url.rpartition('/')[2]} set lock_timeout = '{lock_timeout}'")
    runs: list[tuple[str, int, int]] = []
    first, second = order(1, "k"), order(2, "k")
    attempts = {"suspect": 0, "last attempt": 3, "attempts used up": 4}
    if way in attempts:
        suspect(pg_store, first, attempts[way])
    before = journal(pg_store)
    with under_way(pg_store, first) as twin:
        async with both(pg_store, consumers_of(batch=1 if way == "alone" else None, runs=runs)) as (one, brokers):
            for number in range(10, 50, 10):
                for broker in brokers:
                    broker.append(*([first, second] if number == 10 else []))
                    broker.append(*(order(each, f"k{each}") for each in range(number, number + 10)))
                expected = set(range(10, number + 10))
                await eventually(lambda e=expected: e <= handled(pg_store, "billing"), what="the others are handled")
                await eventually(lambda e=expected: e <= handled(pg_store, "mails"), what="so are the other consumer's")
            assert {1, 2} <= handled(pg_store, "mails")
            assert not {1, 2} & handled(pg_store, "billing")
            await eventually(
                lambda: one.runner.health().detail["billing"]["elsewhere"]["messages"] == 1, what="it is shown"
            )
            health = one.runner.health()
            assert (health.ready, dict(health.problems)) == (True, {})
            assert health.detail["billing"]["gate"]["alone"] is None
            assert held(pg_store) == []
            if way in attempts:
                assert [row[2] for row in journal(pg_store) if UUID(str(row[0])) == first.event_id] == [before[0][2]]
            (twin.commit if ends == "commit" else twin.rollback)()
            of_k = {2} if ends == "commit" or way == "attempts used up" else {1, 2}
            if ends == "rollback" and way == "attempts used up":
                await eventually(lambda: held(pg_store), what="it has no attempt left, and is parked")
                assert held(pg_store)[0][2] == "ProcessDied"
                return
            await eventually(brokers[0].all_settled, what="everything is settled")
            assert of_k == {1, 2} & handled(pg_store, "billing")
            await eventually(
                lambda: one.runner.health().detail["billing"]["elsewhere"]["messages"] == 0, what="nothing waits"
            )
    mine = [number for consumer, number, _ in runs if consumer == "billing" and number < 10]
    assert mine == sorted(of_k), "in order, and once"
    assert first.event_id in inbox(pg_store)


async def test_a_held_key_whose_head_runs_elsewhere_keeps_no_others_back(pg_store: Store) -> None:
    """More heads than keys are drained at once are under way elsewhere; other held keys are drained all the same, and
    theirs wait in their place, without an attempt; then they are drained, too."""
    make_effects(pg_store)
    runs: list[tuple[str, int, int]] = []
    stuck = [order(number, f"s{number}") for number in range(4)]
    free = [order(number, f"f{number}") for number in range(10, 14)]
    for number, message in enumerate([*stuck, *free]):
        hold(pg_store, message, since=number, holder=number % 2 == 0)
    with contextlib.ExitStack() as stack:
        twins = [stack.enter_context(under_way(pg_store, message)) for message in stuck]
        async with both(pg_store, consumers_of(batch=None, runs=runs), in_flight_max=8) as (one, _):
            done = set(range(10, 14))
            await eventually(lambda: done <= handled(pg_store, "billing"), what="the others are drained")
            query = "select attempts from relevo_held_key"
            await eventually(lambda: pg_store.query(query) == [(0,)] * 4, what="theirs wait without an attempt")
            assert one.runner.health().ready
            twins[0].commit()
            for twin in twins[1:]:
                twin.rollback()
            await eventually(lambda: held(pg_store) == [], what="everything is drained")
    assert sorted(number for _, number, _ in runs) == [1, 2, 3, 10, 11, 12, 13]
    assert all(attempt == 1 for _, _, attempt in runs)


async def test_a_key_whose_row_is_locked_waits_by_itself(pg_store: Store) -> None:
    """An operator's transaction holds a key's row; messages of it wait, others do not."""
    make_effects(pg_store)
    runs: list[tuple[str, int, int]] = []
    hold(pg_store, order(0, "k"), since=0, holder=False, state="parked")
    with contextlib.closing(pg_store.connect()) as operator:
        operator.execute("select * from relevo_held_key for update")
        async with both(pg_store, consumers_of(batch=1, runs=runs)) as (one, brokers):
            brokers[0].append(order(1, "k"), *(order(number, f"k{number}") for number in range(10, 30)))
            await eventually(lambda: set(range(10, 30)) <= handled(pg_store, "billing"), what="the others are handled")
            assert one.runner.health().ready
            operator.rollback()
            await eventually(brokers[0].all_settled, what="it is queued behind")
    assert 1 not in {number for _, number, _ in runs}


def hold(store: Store, message: Message, *, since: int, holder: bool, state: str = "draining") -> None:
    """A held key with one message, due; ``holder``: of a process that is gone."""
    with contextlib.closing(store.connect()) as connection:
        connection.execute(
            "insert into relevo_held_key (side, consumer, topic, key, bucket, state, reason, since, holder) values "
            "('consumer', 'billing', %s, %s, 1, %s, 'a test', now() + (%s - 3600) * interval '1 second', %s)",
            (message.topic, message.key, state, since, uuid4() if holder else None),
        )
        connection.execute(
            "insert into relevo_held_message (side, consumer, topic, held_key, event_id, position, shard, bucket, "
            "kind, key, type, schema_version, payload, content_type, created_at) "
            "values ('consumer', 'billing', %s, %s, %s, 1, 's0', 1, 'event', %s, %s, 1, %s, 'application/json', now())",
            (message.topic, message.key, message.event_id, message.key, message.type, message.payload),
        )
        connection.commit()


async def test_slow_handlers_do_not_stop_a_process_that_has_suspects(pg_store: Store) -> None:
    """Eight messages were in hand when their process died, all of them slow; a slow ordinary one runs as well. While
    none of them ends, other keys are handled."""
    make_effects(pg_store)
    release, broker, inside = threading.Event(), FakeBroker(), set()
    consumer = Consumer("billing", ["shop.order"], retry=Backoff(attempts=8))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], tx: psycopg.AsyncConnection) -> None:
        if event.data.order_id < 10:
            inside.add(event.data.order_id)
            await eventually(release.is_set, what="it may end", timeout_s=60)
        await insert(tx, event.data.order_id)

    slow = [order(number, f"s{number}") for number in range(9)]
    for message in slow[:8]:
        suspect(pg_store, message)
    try:
        async with running(consumer, pg_store, broker, connections_max=20, batch=1):
            broker.append(slow[8])
            await eventually(lambda: inside == {8}, what="an ordinary one runs")
            for number in range(8):
                broker.append(slow[number], order(10 + number, f"k{number}"))
            await eventually(lambda: set(effects(pg_store)) == set(range(10, 18)), what="others", timeout_s=40)
            await eventually(lambda: inside == set(range(9)), what="the suspects run", timeout_s=40)
            broker.append(order(30, "k"))
            await eventually(lambda: 30 in effects(pg_store), what="one more")
            release.set()
            await eventually(broker.all_settled, what="all are done")
    finally:
        release.set()
    assert sorted(effects(pg_store)) == [*range(9), *range(10, 18), 30]
