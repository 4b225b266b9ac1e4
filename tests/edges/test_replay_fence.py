"""A replay that holds a key waits for every transaction that found the key live before, whichever way it runs
(PostgreSQL; on SQLite nothing can be under way, since writers take turns)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from relevo import Consumer, Event
from relevo.clients import database_for
from relevo.consumer.replaying import Replayer
from relevo.ports.broker import Delivery
from tests.support.consumers import FAST, order, running, settings_for
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.waiting import eventually

KINDS = [
    *(Session, Connection, AsyncSession, AsyncConnection),
    *(psycopg.Connection, psycopg.AsyncConnection, asyncpg.Connection),
]
ASYNC = (AsyncSession, AsyncConnection, psycopg.AsyncConnection, asyncpg.Connection)
WAYS = ["alone", "batch", "batch without a pipeline", "a handler of many"]


class Log:
    """What ran, in order; live runs of message 3 wait until they are let through."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int]] = []
        self.inside, self.through = threading.Event(), threading.Event()

    def begin(self, event: Event[Any]) -> bool:
        self.lines.append(("begin", "replay" if event.replayed else "live", event.data.order_id))
        stop = not event.replayed and event.data.order_id == 3
        if stop:
            self.inside.set()
        return stop

    def end(self, event: Event[Any]) -> None:
        self.lines.append(("end", "replay" if event.replayed else "live", event.data.order_id))


def billing(way: str, kind: Any, log: Log) -> Consumer:
    consumer = Consumer(
        "billing",
        ["shop.order"],
        retry=FAST,
        batch=1 if way == "alone" else None,
        pipeline=way != "batch without a pipeline",
    )

    def events_of(given: Any) -> list[Event[Any]]:
        return given if isinstance(given, list) else [given]

    def sync(given: Any, tx: Any) -> None:
        for event in events_of(given):
            if log.begin(event):
                assert log.through.wait(30)
            log.end(event)

    async def asynchronous(given: Any, tx: Any) -> None:
        for event in events_of(given):
            if log.begin(event):
                await eventually(log.through.is_set, what="it may go on", timeout_s=30)
            log.end(event)

    handler = asynchronous if kind in ASYNC else sync
    handler.__annotations__["tx"] = kind
    (consumer.on_batch if way == "a handler of many" else consumer.on)(OrderPlaced)(handler)
    return consumer


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__.split('.')[0]}-{kind.__name__}")
@pytest.mark.parametrize("way", WAYS)
async def test_again_waits_for_the_run_under_way(pg_store: Store, kind: Any, way: str) -> None:
    """Message 3 of key k is being handled, in a transaction with a neighbour; 1 and 2 are replayed *again*. None of
    them begins before the handler of 3 has ended and committed."""
    log, broker, messages = Log(), FakeBroker(), [order(number) for number in (1, 2, 3)]
    database = database_for(pg_store.settings)
    replayer = Replayer(
        billing(way, kind, log),
        settings_for(pg_store),
        database,
        "again",
        job_id=uuid4(),
        generation=1,
        holder=uuid4(),
    )
    try:
        async with running(billing(way, kind, log), pg_store, broker):
            broker.append(*messages[:2])
            await eventually(broker.all_settled, what="1 and 2 are handled")
            log.lines.clear()
            broker.append(messages[2], order(9, "other"), order(10, "another"))
            await eventually(log.inside.is_set, what="3 is being handled")
            page = [
                Delivery(message=message, shard="s0", position=at, generation=1)
                for at, message in enumerate(messages[:2])
            ]
            replay = asyncio.create_task(replayer.page(page))
            await eventually(lambda: pg_store.query("select 1 from relevo_held_key"), what="the key is held")
            for _ in range(20):  # as many looks as the replay itself needs to go wrong
                await asyncio.to_thread(pg_store.query, "select 1")
            assert [line for line in log.lines if line[1] == "replay"] == [] and not replay.done()
            log.through.set()
            assert (await replay).handled == 2
            await replayer.rest()
            await eventually(broker.all_settled, what="everything is handled")
    finally:
        log.through.set()
        await replayer.aclose()
        await database.aclose()
    of_key = [(what, way, number) for what, way, number in log.lines if number < 9]
    assert of_key == [
        ("begin", "live", 3),
        ("end", "live", 3),
        *((what, "replay", number) for number in (1, 2) for what in ("begin", "end")),
    ]
