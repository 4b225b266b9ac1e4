"""Faults inside one process: twins, lost connections, lost replies to COMMIT, outages, stops and revoked shards."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from relevo import Backoff, Consumer, Event
from relevo.consumer import ConsumerRunner
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
    settings_for,
    settled,
)
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.swallowing import SwallowingProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("batched")


@pytest.fixture(autouse=True)
def _effects(request: pytest.FixtureRequest) -> None:
    name = "pg_store" if "pg_store" in request.fixturenames else "store"
    make_effects(request.getfixturevalue(name))


def billing(**options: Any) -> Consumer:
    return Consumer("billing", ["shop.order"], **{"retry": FAST, **options})


async def test_a_handler_that_holds_a_lock_stops_only_its_own_key(pg_store: Store) -> None:
    """FAILURES row 13. While one handler waits for a row lock, 200 messages of other keys are handled; later ones of
    its own key wait behind it."""
    consumer, broker = billing(), FakeBroker()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        if event.data.order_id == 0:
            tx.execute("select * from effect where number = -1 for update")
        insert(tx, event.data.order_id)

    pg_store.do("insert into effect (number) values (-1)")
    locker = psycopg.connect(pg_store.url)
    locker.execute("select * from effect where number = -1 for update")
    broker.append(order(0, "slow"), order(1, "slow"), *(order(number, f"k{number}") for number in range(2, 202)))
    try:
        async with running(consumer, pg_store, broker):
            await eventually(lambda: len(effects(pg_store)) == 201, what="the other keys are handled")
            assert not {0, 1} & set(effects(pg_store))
            locker.rollback()
            await settled(broker)
    finally:
        locker.close()
    done = effects(pg_store)
    assert sorted(done) == list(range(-1, 202))
    assert done.index(0) < done.index(1)


async def test_the_same_id_at_once_on_two_consumers_has_one_effect(store: Store) -> None:
    """FAILURES row 29. Two processes of one group get the same message at the same time; the second waits inside the
    inbox insert (PostgreSQL) or for the write lock (SQLite), sees the first's row, and settles without an error."""
    broker = FakeBroker(shards=2)
    runs: list[int] = []
    inside, go = threading.Event(), threading.Event()
    consumer = billing()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        runs.append(event.data.order_id)
        inside.set()
        assert go.wait(15)
        insert(tx, event.data.order_id)

    twin = order(1)
    async with running(consumer, store, broker), running(consumer, store, broker):
        first, second = broker.subscriptions
        await broker.assign("s1", second)
        broker.append(twin, shard="s0")
        broker.append(twin, shard="s1")
        await eventually(inside.is_set, what="one of the twins is inside its handler")
        if store.is_postgres:
            waiting = (
                "select count(*) from pg_stat_activity where wait_event = 'transactionid' and query like '%inbox%'"
            )
            await eventually(lambda: store.query(waiting)[0][0] == 1, what="the other waits in its inbox insert")
        go.set()
        await settled(broker)
    assert effects(store) == [1]
    assert runs == [1]
    assert held(store) == []
    assert len(first.settles) == len(second.settles) == 1


@pytest.mark.parametrize("delivered", [True, False], ids=["committed", "not-committed"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_lost_reply_to_commit_is_looked_up(pg_store: Store, delivered: bool, kind: str, batched: bool) -> None:
    """FAILURES row 31. The connection dies while COMMIT is under way, once after the server did it and once before.
    Either way the inbox rows are looked up on another connection: one effect each, and no attempt is spent."""
    proxy, broker = SwallowingProxy(pg_store.url, deliver=delivered), FakeBroker()
    attempts: list[int] = []
    async with proxy.serve() as url:

        def factory() -> psycopg.Connection[Any]:
            return psycopg.connect(url)

        async def afactory() -> psycopg.AsyncConnection[Any]:
            return await psycopg.AsyncConnection.connect(url)

        consumer = billing(tx=factory if kind == "sync" else afactory)
        if kind == "sync":

            @consumer.on(OrderPlaced)
            def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
                attempts.append(event.attempt)
                insert(tx, event.data.order_id)
                proxy.armed = proxy.armed or (event.data.order_id == 1 and not proxy.cut)

        else:

            @consumer.on(OrderPlaced)
            async def ahandle(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
                attempts.append(event.attempt)
                await insert(tx, event.data.order_id)
                proxy.armed = proxy.armed or (event.data.order_id == 1 and not proxy.cut)

        async with running(consumer, pg_store, broker):
            broker.append(order(1), order(2))
            await settled(broker)
    assert proxy.cut == 1
    assert effects(pg_store) == [1, 2]
    assert attempts == [1] * (2 if delivered else 4 if batched else 3)
    assert held(pg_store) == []


async def test_a_connection_lost_in_the_handler_spends_no_attempt(pg_store: Store) -> None:
    """The backend is terminated while the handler runs: an outage, not the message's failure. It runs again, as
    attempt 1, and nothing of the first run remains."""
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()
    attempts: list[int] = []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        attempts.append(event.attempt)
        insert(tx, event.data.order_id)
        if len(attempts) == 1:
            with psycopg.connect(pg_store.url, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s)", (tx.info.backend_pid,))
            tx.execute("select 1")

    broker.append(order(1))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert attempts == [1, 1]
    assert effects(pg_store) == [1]
    assert held(pg_store) == []


async def test_a_database_that_is_away_pauses_and_resumes_by_itself(pg_store: Store) -> None:
    """The database refuses connections for a while, under load. Readiness says so, nothing is parked, no attempt is
    spent (the policy has only one), and everything is handled afterwards without anybody's help."""
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()
    attempts: set[int] = set()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        attempts.add(event.attempt)
        insert(tx, event.data.order_id)

    name = urlsplit(pg_store.url).path.lstrip("/")
    admin = psycopg.connect(urlsplit(pg_store.url)._replace(path="/postgres").geturl(), autocommit=True)
    try:
        broker.append(*(order(number, f"k{number % 7}") for number in range(50)))
        async with running(consumer, pg_store, broker) as up:
            await eventually(lambda: len(effects(pg_store)) > 5, what="it works")
            admin.execute(f"alter database {name} with allow_connections false")
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
            broker.append(*(order(number, f"k{number % 7}") for number in range(50, 100)))
            await eventually(lambda: "billing/database" in up.runner.health().problems, what="readiness says so")
            assert not up.runner.health().ready
            admin.execute(f"alter database {name} with allow_connections true")
            await settled(broker)
            await eventually(lambda: up.runner.health().ready, what="ready again")
    finally:
        admin.execute(f"alter database {name} with allow_connections true")
        admin.close()
    assert sorted(effects(pg_store)) == list(range(100))
    assert held(pg_store) == []
    assert attempts == {1}


async def test_missing_tables_park_nothing(store: Store) -> None:
    """Relevo's inbox table vanishes under a running consumer: that is the installation's fault. It pauses with the
    reason, and works everything off once the table is back."""
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)

    async with running(consumer, store, broker) as up:
        store.do("alter table relevo_inbox rename to relevo_inbox_gone")
        broker.append(order(1), order(2))
        await eventually(lambda: "billing/database" in up.runner.health().problems, what="readiness says so")
        store.do("alter table relevo_inbox_gone rename to relevo_inbox")
        await settled(broker)
    assert effects(store) == [1, 2]
    assert held(store) == []


async def test_a_stop_finishes_what_runs_and_hands_back_the_rest(store: Store) -> None:
    """Graceful stop: the handler that runs finishes and is settled; what has not begun goes back, nobody's suspects;
    the next start handles it."""
    consumer, broker = billing(), FakeBroker()
    inside, go = threading.Event(), threading.Event()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        inside.set()
        assert go.wait(15)
        insert(tx, event.data.order_id)

    broker.append(*(order(number, "one") for number in range(5)))
    async with running(consumer, store, broker) as up:
        await eventually(inside.is_set, what="a handler runs")
        up.runner.stop()
        go.set()
        await up.task
    assert effects(store) == [0]
    assert [delivery.position for delivery in broker.subscriptions[0].handed_back] == [1, 2, 3, 4]
    assert broker.subscriptions[0].closed
    assert journal(store) == []
    async with running(consumer, store, broker):
        await settled(broker)
    assert effects(store) == [0, 1, 2, 3, 4]


async def test_cancelling_rolls_back_and_hands_back(store: Store) -> None:
    """The second signal: an asynchronous handler is cancelled, its transaction rolled back, its message handed back."""
    consumer, broker = billing(), FakeBroker()
    inside = asyncio.Event()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], tx: Any) -> None:
        done = insert(tx, event.data.order_id)
        if hasattr(done, "__await__"):
            await done
        inside.set()
        await asyncio.Event().wait()

    broker.append(order(1), order(2))
    runner = ConsumerRunner(consumer, settings_for(store), broker=broker)
    task = asyncio.create_task(runner.run())
    await asyncio.wait_for(inside.wait(), 15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert effects(store) == []
    assert inbox(store) == {}
    assert {delivery.position for delivery in broker.subscriptions[0].handed_back} == {0, 1}


async def test_a_revoked_shard_is_finished_before_it_goes(store: Store) -> None:
    """A shard moves to another process under load: what runs is finished and settled, what has not begun is left to the
    new owner; each message has one effect, in order."""
    consumer, broker = billing(), FakeBroker(shards=2)

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)

    async with running(consumer, store, broker), running(consumer, store, broker):
        first, second = broker.subscriptions
        broker.append(*(order(number, "one") for number in range(60)))
        for turn in range(6):
            at = 8 * turn + 4
            await eventually(lambda at=at: len(effects(store)) >= at, what=f"{at} effects")
            await broker.assign("s0", second if turn % 2 == 0 else first)
        await settled(broker)
    assert effects(store) == list(range(60))
    assert held(store) == []


async def test_a_zombie_s_effect_counts_once(store: Store) -> None:
    """FAILURES row 11 on this side. A shard is taken away without a word while its handler runs; the new owner gets the
    same messages. One effect each, in order, and the zombie's settles are ignored."""
    consumer, broker = billing(), FakeBroker()
    inside, go = threading.Event(), threading.Event()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        if not inside.is_set():
            inside.set()
            assert go.wait(15)
        insert(tx, event.data.order_id)

    async with running(consumer, store, broker), running(consumer, store, broker):
        second = broker.subscriptions[1]
        broker.append(*(order(number, "one") for number in range(4)))
        await eventually(inside.is_set, what="the first owner is inside a handler")
        await broker.assign("s0", second, silently=True)
        go.set()
        await settled(broker)
    assert effects(store) == [0, 1, 2, 3]
    assert held(store) == []


async def test_a_serialization_failure_spends_no_attempt(pg_store: Store) -> None:
    """Conflicts, by SQLSTATE: 40001 in the handler reruns it in a fresh transaction; one attempt is enough."""
    consumer, broker = billing(retry=Backoff(attempts=1, base=timedelta(milliseconds=1))), FakeBroker()
    runs: list[int] = []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        runs.append(event.attempt)
        insert(tx, event.data.order_id)
        if len(runs) < 4:
            tx.execute("do $$ begin raise exception 'Konflikt' using errcode = 'serialization_failure'; end $$")

    broker.append(order(1))
    async with running(consumer, pg_store, broker):
        await settled(broker)
    assert runs == [1, 1, 1, 1]
    assert effects(pg_store) == [1]
    assert held(pg_store) == []


async def test_a_drain_that_was_abandoned_is_taken_over(store: Store) -> None:
    """A process claimed a waiting key and died: after its lease another one drains the key, in order."""
    consumer, broker = (
        billing(retry=Backoff(attempts=6, base=timedelta(milliseconds=1)), inline_retry_s=0.0),
        FakeBroker(),
    )
    blocked = threading.Event()

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        if not blocked.is_set():
            raise RuntimeError("not yet")
        insert(tx, event.data.order_id)

    def abandon() -> bool:
        """Make the waiting key look claimed by a process that is gone."""
        soon = (
            "clock_timestamp() + interval '500 ms'"
            if store.is_postgres
            else ("cast((julianday('now') - 2440587.5) * 86400000 as integer) + 500")
        )
        store.do(
            "update relevo_held_key set state = 'draining', holder = '00000000-0000-7000-8000-00000000dead', "
            f"epoch = epoch + 1, attempts = 1, due_at = null, expires_at = {soon}"
        )
        return True

    broker.append(order(1), order(2))
    async with running(consumer, store, broker):
        await eventually(lambda: len(held(store)) == 1, what="the key is held")
        assert abandon()
        blocked.set()
        await settled(broker)
        await eventually(lambda: not held(store), what="the key is live again")
    assert effects(store) == [1, 2]


async def test_a_handler_s_transaction_can_be_bounded(pg_store: Store) -> None:
    """handler_idle_timeout_s: the server ends a handler's transaction that is silent for too long. That is a lost
    connection, not the message's failure; Relevo's own bookkeeping is always bounded."""
    consumer, broker = billing(retry=Backoff(attempts=1)), FakeBroker()
    runs: list[int] = []
    ended = "select count(*) from pg_stat_activity where pid = %s"

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], tx: psycopg.AsyncConnection[Any]) -> None:
        runs.append(event.attempt)
        await insert(tx, event.data.order_id)
        if len(runs) == 1:
            pid = tx.info.backend_pid
            await eventually(lambda: pg_store.query(ended % pid)[0][0] == 0, what="the server ended the session")
            await insert(tx, event.data.order_id)

    broker.append(order(1))
    async with running(consumer, pg_store, broker, handler_idle_timeout_s=0.3):
        await settled(broker)
    assert len(runs) >= 2 and set(runs) == {1}  # a slow machine may lose later ones that way too
    assert effects(pg_store) == [1]
    assert held(pg_store) == []
