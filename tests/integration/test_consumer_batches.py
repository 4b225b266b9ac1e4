"""Several messages in one transaction: the same effects as one by one, for every kind of ``tx`` and every failure."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy import event as on
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from relevo import Backoff, Consumer, Event, Outbox, Reject
from relevo.storage import inboxing
from tests.support.consumers import FAST, effects, held, inbox, insert, journal, make_effects, order, running, settled
from tests.support.events import ChargeCard, OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.waiting import eventually

outbox = Outbox()
KINDS = {
    "postgresql": [
        *(Session, Connection, AsyncSession, AsyncConnection),
        *(psycopg.Connection, psycopg.AsyncConnection, asyncpg.Connection),
    ],
    "sqlite": [Session, Connection, AsyncSession, AsyncConnection, sqlite3.Connection],
}
PAIRS = [(dialect, kind) for dialect, kinds in KINDS.items() for kind in kinds]
ASYNC = (AsyncSession, AsyncConnection, psycopg.AsyncConnection, asyncpg.Connection)


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1].__module__.split('.')[0]}-{pair[1].__name__}")
def case(request: pytest.FixtureRequest, tmp_path: Any) -> tuple[Store, Any]:
    dialect, kind = request.param
    store = sqlite_store(tmp_path / "app.db") if dialect == "sqlite" else _postgres(request)
    make_effects(store)
    return store, kind


def _postgres(request: pytest.FixtureRequest) -> Store:
    return postgres_store(request.getfixturevalue("pg_database"))


def billing(**options: Any) -> Consumer:
    return Consumer("billing", ["shop.order"], **{"retry": FAST, **options})


def declare(consumer: Consumer, kind: Any, fails: set[int] = frozenset()) -> Counter[int]:  # type: ignore[assignment]
    """A handler that writes an effect and an event, and fails for some; how often it ran for each."""
    runs: Counter[int] = Counter()

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        runs[event.data.order_id] += 1
        insert(tx, event.data.order_id)
        outbox.add(tx, ChargeCard(event.data.order_id))
        if event.data.order_id in fails:
            raise ValueError("bad")

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        runs[event.data.order_id] += 1
        await insert(tx, event.data.order_id)
        await outbox.add(tx, ChargeCard(event.data.order_id))
        if event.data.order_id in fails:
            raise ValueError("bad")

    chosen = asynchronous if kind in ASYNC else sync
    chosen.__annotations__["tx"] = kind
    consumer.on(OrderPlaced)(chosen)
    return runs


def transactions(store: Store) -> int:
    """In how many transactions the inbox rows were written."""
    return int(store.query("select count(distinct cast(xmin as text)) from relevo_inbox")[0][0])


async def test_a_batch_has_every_effect_once_in_order(case: tuple[Store, Any]) -> None:
    """Inbox rows, effects and emitted events of 40 messages on 4 keys, for every kind of tx; on PostgreSQL the rows'
    transactions show that it was a batch indeed."""
    store, kind = case
    consumer, broker = billing(), FakeBroker()
    runs = declare(consumer, kind)
    messages = [order(number, f"k{number % 4}") for number in range(40)]
    broker.append(*messages)
    async with running(consumer, store, broker):
        await settled(broker)
    done = effects(store)
    assert sorted(done) == list(range(40))
    assert all([n for n in done if n % 4 == key] == list(range(key, 40, 4)) for key in range(4))
    assert set(runs.values()) == {1}
    assert inbox(store) == {message.event_id: "done" for message in messages}
    assert store.query("select count(*) from relevo_outbox") == [(40,)]
    assert journal(store) == []
    if store.is_postgres:
        assert transactions(store) < 30


async def test_a_failure_in_a_batch_is_its_own_message_s(case: tuple[Store, Any]) -> None:
    """Two of twenty fail: nothing of the rolled-back transaction remains, the others have one effect each, the two are
    parked with their attempts, and what was behind them waits."""
    store, kind = case
    consumer, broker = billing(retry=Backoff(attempts=2, base=FAST.base)), FakeBroker()
    declare(consumer, kind, fails={3, 11})
    broker.append(*(order(number, f"k{number}") for number in range(20)))
    broker.append(order(103, "k3"))
    async with running(consumer, store, broker):
        await settled(broker)
    assert sorted(effects(store)) == [number for number in range(20) if number not in (3, 11)]
    assert [(state, attempts) for state, _, _, attempts in held(store)] == [("parked", 2)] * 2
    assert store.query("select count(*) from relevo_outbox") == [(18,)]


async def test_held_keys_and_duplicates_are_left_out_of_a_batch(store: Store) -> None:
    """A parked key's next message queues behind it, and one that the inbox knows is settled; neither spoils the batch
    they came with."""
    make_effects(store)
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()
    runs: Counter[int] = Counter()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        runs[event.data.order_id] += 1
        if event.data.order_id == 0:
            raise Reject("bad")
        insert(tx, event.data.order_id)

    known = order(1, "a")
    broker.append(order(0, "bad"), known)
    async with running(consumer, store, broker):
        await settled(broker)
        runs.clear()
        broker.append(order(2, "bad"), known, known, *(order(number, f"k{number}") for number in range(3, 20)))
        await settled(broker)
    assert sorted(effects(store)) == [1, *range(3, 20)]
    assert set(runs.values()) == {1}
    assert [state for state, *_ in held(store)] == ["parked"]
    assert len(store.query("select 1 from relevo_held_message")) == 2


async def test_outward_handlers_and_those_without_tx_run_alone(pg_store: Store) -> None:
    """What acts outside its transaction is never repeated for a neighbour's sake: its inbox rows stand alone."""
    make_effects(pg_store)
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()
    told: list[int] = []

    @consumer.on(OrderPlaced, outward=True)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        insert(tx, event.data.order_id)

    @consumer.on("shop.order.noted")
    def tell(event: Event[Any]) -> None:
        told.append(1)

    broker.append(*(order(number, f"k{number}") for number in range(10)))
    broker.append(*(order(number, f"n{number}", type="shop.order.noted") for number in range(10)))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert transactions(pg_store) == 20
    assert len(told) == 10


async def test_sql_that_commits_costs_nobody_else_s_effect(pg_store: Store) -> None:
    """A handler that says COMMIT in SQL, among twenty others: refused before it is sent, and its own message parks."""
    make_effects(pg_store)
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
        await tx.execute("insert into effect (number) values (%s)", [event.data.order_id])
        if event.data.order_id == 7:
            await tx.execute("commit")

    broker.append(*(order(number, f"k{number}") for number in range(20)))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert set(range(20)) - {7} <= set(effects(pg_store))


async def test_rows_of_a_transaction_that_somebody_else_ended_are_taken_back(pg_store: Store) -> None:
    """A COMMIT below everything that is watched is seen when the handler is done: the inbox rows of its message and of
    those that had not run go away again, but never a row that another transaction wrote."""
    make_effects(pg_store)
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], tx: asyncpg.Connection[Any]) -> None:
        await tx.execute("insert into effect (number) values ($1)", event.data.order_id)
        if event.data.order_id == 7:
            await tx._protocol.query("commit", None)

    broker.append(*(order(number, f"k{number}") for number in range(20)))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert set(effects(pg_store)) == set(range(20))
    assert [number for number, times in Counter(effects(pg_store)).items() if times > 1] in ([], [7])  # its own damage
    [(state, _, error_type, _)] = held(pg_store)
    assert state == "parked"
    assert error_type is not None
    assert error_type.startswith("relevo.errors.MisuseError")
    [(xid,)] = pg_store.query("select cast(pg_current_xact_id() as text)")
    ids = [str(event_id) for event_id in inbox(pg_store)]
    from relevo.clients import database_for

    database = database_for(pg_store.settings)
    await database.run(inboxing.take_back("billing", ids, xid=xid))
    await database.aclose()
    assert len(inbox(pg_store)) == 19


@pytest.mark.parametrize("kind", [psycopg.Connection, psycopg.AsyncConnection], ids=["sync", "async"])
async def test_a_pipeline_is_not_noticed(pg_store: Store, kind: Any) -> None:
    """``rowcount`` before a fetch, a savepoint that fails and is caught, rows that are read, a COPY, two statements in
    one: with a pipeline or, where that cannot be, repeated without one, each handler sees what it always saw."""
    make_effects(pg_store)
    pg_store.do("create table once (number integer primary key)")
    pg_store.do("insert into once values (5)")
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()
    seen: dict[int, Any] = {}

    async def asynchronous(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
        number = event.data.order_id
        if number % 5 == 0:
            seen[number] = (await tx.execute("update once set number = number where number = %s", [number])).rowcount
        elif number % 5 == 1:
            try:
                async with tx.transaction():
                    await tx.execute("insert into once values (5)")
            except psycopg.errors.UniqueViolation:
                seen[number] = "caught"
        elif number % 5 == 2:
            seen[number] = await (await tx.execute("select %s::int", [number])).fetchone()
        elif number % 5 == 3:
            async with tx.cursor() as cursor, cursor.copy("copy effect (what) from stdin") as copy:
                await copy.write_row([f"{number}"])
        else:
            await tx.execute("select 1; select 2")
        await tx.execute("insert into effect (number) values (%s)", [number])

    def sync(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        number = event.data.order_id
        if number % 5 == 0:
            seen[number] = tx.execute("update once set number = number where number = %s", [number]).rowcount
        elif number % 5 == 1:
            try:
                with tx.transaction():
                    tx.execute("insert into once values (5)")
            except psycopg.errors.UniqueViolation:
                seen[number] = "caught"
        elif number % 5 == 2:
            seen[number] = tx.execute("select %s::int", [number]).fetchone()
        elif number % 5 == 3:
            with tx.cursor() as cursor, cursor.copy("copy effect (what) from stdin") as copy:
                copy.write_row([f"{number}"])
        else:
            tx.execute("select 1; select 2")
        tx.execute("insert into effect (number) values (%s)", [number])

    consumer.on(OrderPlaced)(asynchronous if kind is psycopg.AsyncConnection else sync)
    for part in range(5):  # each kind of statement by itself, then all together
        broker.append(*(order(number, f"k{number}") for number in range(25) if number % 5 == part))
    broker.append(*(order(number, f"k{number}") for number in range(25, 50)))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert held(pg_store) == []
    assert sorted(n for n in effects(pg_store) if n is not None) == list(range(50))
    assert seen[5] == 1
    assert {seen[number] for number in (10, 15, 30)} == {0}
    assert seen[6] == seen[31] == "caught"
    assert (seen[7], seen[32]) == ((7,), (32,))
    assert len(pg_store.query("select 1 from effect where what is not null")) == 10


@pytest.mark.parametrize("kind", [psycopg.Connection, psycopg.AsyncConnection], ids=["sync", "async"])
async def test_statements_of_a_batch_go_out_together(pg_store: Store, kind: Any) -> None:
    """What a pipeline is for: a statement is not sent before there are some more. The seam in psycopg is not public: if
    this fails after an update, batches are still right and only slower."""
    make_effects(pg_store)
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()
    waiting: list[int] = []

    async def asynchronous(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
        await tx.execute("insert into effect (number) values (%s)", [event.data.order_id])
        waiting.append(len(tx._pipeline.command_queue) if tx._pipeline else 0)

    def sync(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        tx.execute("insert into effect (number) values (%s)", [event.data.order_id])
        waiting.append(len(tx._pipeline.command_queue) if tx._pipeline else 0)

    consumer.on(OrderPlaced)(asynchronous if kind is psycopg.AsyncConnection else sync)
    broker.append(*(order(number, f"k{number}") for number in range(80)))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert sorted(effects(pg_store)) == list(range(80))
    assert max(waiting) > 3


async def test_an_error_that_surfaces_late_in_a_pipeline_is_put_down_to_its_own_message(pg_store: Store) -> None:
    """The statement of one of 30 violates a constraint; nobody waits for the answer in the handler itself."""
    make_effects(pg_store)
    pg_store.do("create unique index on effect (number)")
    pg_store.do("insert into effect (number) values (13)")
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
        await tx.execute("insert into effect (number) values (%s)", [event.data.order_id])

    broker.append(*(order(number, f"k{number}") for number in range(30)))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert sorted(effects(pg_store)) == list(range(30))
    [(state, reason, error_type, _)] = held(pg_store)
    assert (state, error_type is not None and error_type.startswith("psycopg.errors.UniqueViolation")) == (
        "parked",
        True,
    )
    assert "(13)" in reason


async def test_sessions_of_a_batch_hear_of_their_commit_after_it(store: Store) -> None:
    """``before_commit`` and ``after_commit`` of each handler's session are called once, in that order, and the second
    one when the rows are there for others."""
    make_effects(store)
    consumer, broker = billing(), FakeBroker()
    heard: list[tuple[int, str]] = []
    there: list[int] = []

    @consumer.on(OrderPlaced)
    def handle(given: Event[OrderPlaced], tx: Session) -> None:
        number = given.data.order_id

        def after(session: Session) -> None:
            heard.append((number, "after"))
            if store.is_postgres:  # SQLite would wait for the connection that is just being given back
                there.append(len(store.query(f"select 1 from effect where number = {number}")))

        on.listen(tx, "before_commit", lambda session: heard.append((number, "before")))
        on.listen(tx, "after_commit", after)
        tx.execute(text("insert into effect (number) values (:n)"), {"n": number})

    broker.append(*(order(number, f"k{number}") for number in range(6)))
    async with running(consumer, store, broker):
        await settled(broker)
    assert [what for number, what in heard if number == 3] == ["before", "after"]
    assert len(heard) == 12
    assert set(there) <= {1}


async def test_conflicts_halve_a_batch_until_they_are_gone(pg_store: Store) -> None:
    """Two consumers touch the same two rows in opposite order, in batches: deadlocks are resolved, nothing is parked or
    counted, and every effect is there once (HARD 14)."""
    make_effects(pg_store)
    pg_store.do("create table counter (id integer primary key, n integer)")
    pg_store.do("insert into counter values (1, 0), (2, 0)")

    def build(name: str, rows: tuple[int, int]) -> Consumer:
        consumer = Consumer(name, ["shop.order"], retry=FAST)

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
            for row in rows if event.data.order_id % 2 else reversed(rows):
                await tx.execute("update counter set n = n + 1 where id = %s", [row])

        return consumer

    brokers = FakeBroker(), FakeBroker()
    for broker in brokers:
        broker.append(*(order(number, f"k{number}") for number in range(60)))
    async with (
        running(build("one", (1, 2)), pg_store, brokers[0]),
        running(build("two", (2, 1)), pg_store, brokers[1]),
    ):
        for broker in brokers:
            await settled(broker, 60.0)
    assert pg_store.query("select n from counter order by id") == [(120,), (120,)]
    assert held(pg_store) == []


async def test_a_set_based_handler_gets_lists_in_order_and_only_new_ones(store: Store) -> None:
    """One type, one list per transaction, order kept within a key; a duplicate is not in it."""
    make_effects(store)
    consumer, broker = billing(), FakeBroker()
    lists: list[list[int]] = []

    @consumer.on_batch(OrderPlaced)
    def handle(events: list[Event[OrderPlaced]], tx: Any) -> None:
        lists.append([event.data.order_id for event in events])
        for event in events:
            insert(tx, event.data.order_id)

    @consumer.on("shop.order.noted")
    def note(event: Event[Any], tx: Any) -> None:
        insert(tx, 1000)

    messages = [order(number, f"k{number % 3}") for number in range(30)]
    broker.append(*messages[:10], order(0, "n", type="shop.order.noted"), *messages[10:], messages[4])
    async with running(consumer, store, broker):
        await settled(broker)
    assert sorted(effects(store)) == [*range(30), 1000]
    assert sorted(number for each in lists for number in each) == list(range(30))
    assert len(lists) < 15
    done = [n for n in effects(store) if n < 1000]
    assert all([n for n in done if n % 3 == key] == list(range(key, 30, 3)) for key in range(3))


async def test_the_culprit_in_a_set_is_found_and_parked(store: Store) -> None:
    """One of 32 makes the whole list fail: it is halved down to that one, which is retried and parked as any other."""
    make_effects(store)
    consumer, broker = billing(retry=Backoff(attempts=2, base=FAST.base)), FakeBroker()

    @consumer.on_batch(OrderPlaced)
    def handle(events: list[Event[OrderPlaced]], tx: Any) -> None:
        for event in events:
            insert(tx, event.data.order_id)
        if any(event.data.order_id == 17 for event in events):
            raise ValueError("one of them is bad")

    broker.append(*(order(number, f"k{number}") for number in range(32)))
    async with running(consumer, store, broker):
        await settled(broker)
    assert sorted(effects(store)) == [number for number in range(32) if number != 17]
    assert [(state, attempts) for state, _, _, attempts in held(store)] == [("parked", 2)]


async def test_what_one_handler_binds_the_next_does_not_see(store: Store) -> None:
    """Context variables: each handler of a batch has its own, on the loop and in a thread."""
    from contextvars import ContextVar

    make_effects(store)
    bound: ContextVar[int] = ContextVar("bound", default=-1)
    consumer, broker = billing(), FakeBroker()
    seen: list[int] = []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        seen.append(bound.get())
        bound.set(event.data.order_id)
        insert(tx, event.data.order_id)

    @consumer.on("shop.order.noted")
    async def note(event: Event[Any], tx: Any) -> None:
        seen.append(bound.get())
        bound.set(1)
        done = insert(tx, 1000)
        if hasattr(done, "__await__"):
            await done

    broker.append(*(order(number, f"k{number}") for number in range(8)))
    broker.append(*(order(number, f"n{number}", type="shop.order.noted") for number in range(8)))
    async with running(consumer, store, broker):
        await settled(broker)
    assert seen == [-1] * 16


async def test_a_slow_handler_leaves_its_batch_s_rest_for_the_next(store: Store) -> None:
    """Handlers that take longer than a batch may: what was done by then is committed, the rest follows, nothing is
    done twice."""
    import time

    make_effects(store)
    consumer, broker = billing(), FakeBroker()
    runs: Counter[int] = Counter()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        runs[event.data.order_id] += 1
        insert(tx, event.data.order_id)
        time.sleep(0.15)  # what is tested: a handler that takes its time

    broker.append(*(order(number, f"k{number}") for number in range(8)))
    async with running(consumer, store, broker):
        await settled(broker)
    assert sorted(effects(store)) == list(range(8))
    assert set(runs.values()) == {1}
    await eventually(lambda: journal(store) == [], what="nothing is left in the journal")
