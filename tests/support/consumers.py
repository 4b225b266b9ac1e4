"""A consumer runner on a real database and the in-memory log, and what tests look at afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from relevo.consumer import Consumer, ConsumerRunner
from relevo.ids import uuid7
from relevo.message import Message
from relevo.policy import Backoff
from relevo.settings import ConsumerSettings, Settings
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.waiting import eventually

FAST = Backoff(attempts=4, base=timedelta(milliseconds=5), cap=timedelta(milliseconds=20))
"""Retries in place, soon."""


BATCH = 100
"""``consumer.batch`` of the runners here; the fixture ``batched`` switches it off."""


def order(
    number: int, key: str | None = "k", *, type: str = "shop.order.placed", payload: bytes | None = None
) -> Message:
    """A message as the relay would have sent it; ``number`` comes back in ``event.data.order_id``."""
    return Message(
        event_id=uuid7(),
        type=type,
        topic="shop.order",
        payload=json.dumps({"order_id": number, "note": ""}).encode() if payload is None else payload,
        created_at=datetime.now(UTC),
        key=None if key is None else key.encode(),
    )


def settings_for(store: Store, **consumer: Any) -> Settings:
    options: dict[str, Any] = {"lease_s": 2.0, "stop_timeout_s": 10.0, "threads": 4, "batch": BATCH} | consumer
    return Settings(database=store.settings, consumer=ConsumerSettings(**options))


@dataclass
class Running:
    runner: ConsumerRunner
    task: asyncio.Task[None]


@contextlib.asynccontextmanager
async def running(
    consumer: Consumer | list[Consumer], store: Store, broker: Any, **consumer_settings: Any
) -> AsyncIterator[Running]:
    """The consumer, taking messages, until the block ends; then a clean stop, which must succeed."""
    runner = ConsumerRunner(consumer, settings_for(store, **consumer_settings), broker=broker)
    ready = asyncio.Event()
    task = asyncio.create_task(runner.run(on_ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    try:
        yield Running(runner, task)
    finally:
        runner.stop()
        await task


async def settled(broker: FakeBroker, timeout_s: float = 20.0) -> None:
    await eventually(broker.all_settled, what="every delivery settled", timeout_s=timeout_s)


def make_effects(store: Store) -> None:
    """A table for what handlers do; no unique key, so a doubled effect shows."""
    store.do(
        "create table effect (effect_seq integer generated always as identity, number integer, what text)"
        if store.is_postgres
        else "create table effect (effect_seq integer primary key autoincrement, number integer, what text)"
    )


def effects(store: Store) -> list[int]:
    return [row[0] for row in store.query("select number from effect order by effect_seq")]


def inbox(store: Store) -> dict[UUID, str]:
    return {UUID(str(row[0])): row[1] for row in store.query("select event_id, outcome from relevo_inbox")}


def held(store: Store) -> list[tuple[str, str, str | None, int]]:
    """State, reason, error type, attempts of every held key."""
    return [
        (row[0], row[1], row[2], row[3])
        for row in store.query("select state, reason, error_type, attempts from relevo_held_key order by since")
    ]


def queue(store: Store) -> list[int]:
    """The numbers in the held queues, in drain order."""
    rows = store.query("select payload from relevo_held_message order by held_key, position, held_seq")
    return [json.loads(bytes(row[0]))["order_id"] for row in rows]


def journal(store: Store) -> list[tuple[Any, ...]]:
    return store.query("select event_id, owner, attempts from relevo_journal")


def insert(tx: Any, number: int, what: str = "") -> Any:
    """One effect, on whatever kind of transaction the handler got; await what comes back if it is awaitable."""
    module = type(tx).__module__.partition(".")[0]
    if module == "sqlalchemy":
        from sqlalchemy import text

        return tx.execute(text("insert into effect (number, what) values (:n, :w)"), {"n": number, "w": what})
    if module == "asyncpg":
        return tx.execute("insert into effect (number, what) values ($1, $2)", number, what)
    mark = "?" if module == "sqlite3" else "%s"
    return tx.execute(f"insert into effect (number, what) values ({mark}, {mark})", (number, what))
