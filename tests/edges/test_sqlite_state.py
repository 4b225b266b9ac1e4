"""What a handler sets on SQLite's connection does not hold for the messages behind it, in its batch or later."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relevo import Consumer, Event
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
