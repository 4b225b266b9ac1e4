"""What is counted, parked and kept when a handler misbehaves: single cases beside the matrix of hostile handlers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from relevo import Backoff, Consumer, Event, Reject
from tests.support.consumers import effects, held, insert, make_effects, order, running, settled
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.waiting import eventually

THRICE = Backoff(attempts=3, base=timedelta(milliseconds=5), cap=timedelta(milliseconds=20))


@pytest.fixture
def shop(pg_store: Store) -> Store:
    make_effects(pg_store)
    return pg_store


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_handler_that_ends_its_connection_is_parked_after_its_attempts(shop: Store, attempts: int) -> None:
    """And readiness does not flap: the database answers all the time. A first loss spends no attempt."""
    runs: list[int] = []
    consumer = Consumer(
        "billing", ["shop.order"], batch=1, retry=Backoff(attempts=attempts, base=timedelta(milliseconds=5))
    )

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        if event.data.order_id == 1:
            runs.append(event.attempt)
            tx.execute("select pg_terminate_backend(pg_backend_pid())")
        insert(tx, event.data.order_id)

    broker = FakeBroker()
    broker.append(order(1, "bad"), *(order(number, f"k{number}") for number in range(2, 12)))
    unready: list[str] = []
    async with running(consumer, shop, broker) as member:

        def over() -> bool:
            unready.extend(member.runner.health().problems.values())
            return broker.all_settled() and bool(held(shop))

        await eventually(over, what="the bad one is parked, the others are done")
    [(state, reason, error_type, counted)] = held(shop)
    assert (state, counted) == ("parked", attempts)
    assert "the database failed while the handler ran" in reason
    assert error_type is not None and error_type.startswith("psycopg.errors.AdminShutdown at ")
    assert runs == [1, *range(1, attempts + 1)]
    assert sorted(effects(shop)) == list(range(2, 12))
    assert unready == []


@pytest.mark.parametrize("method", ["commit", "rollback", "close"])
async def test_misuse_of_the_transaction_is_parked_at_once_and_names_its_line(shop: Store, method: str) -> None:
    consumer, runs = Consumer("billing", ["shop.order"], batch=1, retry=THRICE), []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        runs.append(event.attempt)
        getattr(tx, method)()

    broker = FakeBroker()
    broker.append(order(1, "a"))
    async with running(consumer, shop, broker):
        await settled(broker)
    [(state, _, error_type, _)] = held(shop)
    line = handle.__code__.co_firstlineno + 3
    assert (state, runs) == ("parked", [1])
    assert error_type is not None
    assert error_type.startswith("relevo.errors.MisuseError at ")
    assert error_type.endswith(f"handle:{line}")


async def test_a_handler_cannot_change_what_is_held(shop: Store) -> None:
    """Neither through the event's headers, nor through the raw message."""
    consumer, seen = Consumer("billing", ["shop.order"], retry=THRICE), []

    @consumer.on("shop.order.placed")
    def handle(event: Event[Any], tx: psycopg.Connection[Any]) -> None:
        seen.append(dict(event.headers))
        given: list[Any] = [event.headers, event.data.headers]
        for headers in given:
            dict.__setitem__(headers, "tenant", "changed")
        raise Reject("no")

    broker = FakeBroker()
    broker.append(*(msgspec.structs.replace(order(n, f"k{n}"), headers={"tenant": "a"}) for n in range(3)))
    async with running(consumer, shop, broker):
        await settled(broker)
    rows = shop.query("select headers from relevo_held_message")
    assert [row[0] for row in rows] == [{"tenant": "a"}] * 3
    assert seen and all(each == {"tenant": "a"} for each in seen)


async def test_data_is_decoded_anew_for_each_attempt(shop: Store) -> None:
    consumer, seen = Consumer("billing", ["shop.order"], retry=THRICE), []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        seen.append(list(event.data.note))
        event.data.note.append("changed")
        raise ValueError("again")

    broker = FakeBroker()
    broker.append(order(1, "a", payload=b'{"order_id": 1, "note": ["as sent"]}'))
    async with running(consumer, shop, broker):
        await settled(broker)
    assert seen == [["as sent"]] * 3


@pytest.mark.parametrize("state", ["53100", "53200", "53000"])
async def test_a_statement_that_finds_no_room_again_and_again_is_parked_on_a_quiet_consumer(
    shop: Store, state: str
) -> None:
    """The database takes other writes meanwhile: waited for once, then counted, and readiness does not flap."""
    runs: list[int] = []
    consumer = Consumer("billing", ["shop.order"], batch=1, retry=THRICE)

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
        runs.append(event.attempt)
        tx.execute(f"do $$ begin raise exception 'no room for this' using errcode = '{state}'; end $$")

    broker = FakeBroker()
    broker.append(order(1, "bad"))
    downs: set[str] = set()
    async with running(consumer, shop, broker) as member:

        def over() -> bool:
            downs.update(member.runner.health().problems.values())
            return broker.all_settled() and bool(held(shop))

        await eventually(over, what="it is parked", timeout_s=30)
    [(where, reason, _, counted)] = held(shop)
    assert (where, counted) == ("parked", 3)
    assert "no room for this" in reason
    assert runs == [1, 1, 2, 3]
    assert len(downs) <= 1, "it was an outage once"
    assert shop.query("select count(*) from relevo_inbox") == [(0,)], "the small writes are taken back"
