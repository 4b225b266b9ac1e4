"""What a handler sets on SQLite's connection does not hold for the messages behind it, in its batch or later."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relevo import Backoff, Consumer, Event
from tests.support.consumers import effects, held, insert, make_effects, order, running, settled
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import sqlite_store


def fails(*_: object) -> Any:
    raise ValueError("a callback of the handler's")


SETS: dict[str, Callable[[sqlite3.Connection], object]] = {
    "query_only": lambda tx: tx.execute("pragma query_only = on"),
    "query_only, called": lambda tx: tx.execute("PRAGMA query_only(1)"),
    "foreign keys at the end": lambda tx: tx.execute("pragma defer_foreign_keys = on"),
    "progress handler": lambda tx: tx.set_progress_handler(lambda: 1, 1),
    "rows": lambda tx: setattr(tx, "row_factory", fails),
    "text": lambda tx: setattr(tx, "text_factory", fails),
    "looks": lambda tx: tx.execute("pragma table_info(relevo_inbox)").fetchall(),
}


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("what", SETS)
async def test_state_of_a_connection_stays_with_its_handler(tmp_path: Path, what: str, batch: int | None) -> None:
    store = sqlite_store(tmp_path / "app.db")
    make_effects(store)
    consumer = Consumer("billing", ["shop.order"], batch=batch)

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: sqlite3.Connection) -> None:
        assert tx.execute("select 'as text'").fetchone() == ("as text",)
        insert(tx, event.data.order_id)
        if event.data.order_id in (2, 5):
            SETS[what](tx)

    broker = FakeBroker()
    broker.append(*(order(number, f"k{number}") for number in range(1, 8)))
    async with running(consumer, store, broker):
        await settled(broker)
        broker.append(*(order(number, f"k{number}") for number in range(8, 10)))
        await settled(broker)
    assert sorted(effects(store)) == list(range(1, 10))
    assert held(store) == []


BYPASSES: dict[str, Callable[[sqlite3.Connection], object]] = {
    "commits": lambda tx: tx.commit(),
    "commits and begins": lambda tx: (tx.commit(), tx.execute("begin")),
    "rolls back": lambda tx: tx.rollback(),
    "puts on another": lambda tx: (tx.commit(), tx.set_authorizer(lambda *_: sqlite3.SQLITE_OK)),
}


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("what", BYPASSES)
async def test_a_handler_that_removes_the_authorizer_is_noticed(
    tmp_path: Path, what: str, batch: int | None, raises: bool
) -> None:
    """Its message is parked, though its own commit took the inbox row with it; the others are handled once."""
    store = sqlite_store(tmp_path / "app.db")
    make_effects(store)
    consumer = Consumer("billing", ["shop.order"], batch=batch, retry=Backoff(attempts=1))

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: sqlite3.Connection) -> None:
        insert(tx, event.data.order_id)
        if event.data.order_id == 4:
            tx.set_authorizer(None)
            BYPASSES[what](tx)
            insert(tx, 40)
            if raises:
                raise ValueError("and then it fails")

    broker = FakeBroker()
    broker.append(*(order(number, f"k{number}") for number in range(1, 8)))
    async with running(consumer, store, broker):
        await settled(broker)
    done = [number for number in sorted(effects(store)) if number not in (4, 40)]
    assert set(done) == {1, 2, 3, 5, 6, 7}
    assert len(done) == 6 or what == "rolls back"
    [(state, reason, *_)] = held(store)
    assert state == "parked" and "began, committed, rolled back" in reason
    assert len(store.query("select 1 from relevo_inbox")) == 6
