"""A ``relevo replay`` whose database hangs: in the middle, at the start, at a stop.

Right is: the run goes on by itself or ends within its bound with an error that says so, and the job is finished by the
same command; each message runs once in its generation, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from relevo import Consumer, Event, Outbox
from relevo.errors import RefusedError, RelevoError
from relevo.ops.replay import Replays
from relevo.ops.replay_sources import Selection
from relevo.settings import BrokerSettings, ConsumerSettings, DatabaseSettings, Settings
from tests.support.consumers import FAST, effects, insert, make_effects
from tests.support.events import OrderPlaced
from tests.support.hanging import HangingProxy, hanging
from tests.support.relays import Store, postgres_store
from tests.support.waiting import eventually

COUNT = 300
LEASE_S = 4.0
NOTICED_S = 3 * LEASE_S + 20.0
"""The bound of a round trip, the lease of the job that nobody renews, and as much again for a slow machine."""


class Shop:
    """``link``: what goes through the proxy."""

    def __init__(self, store: Store, proxy: HangingProxy, link: str) -> None:
        self.store, self.proxy = store, proxy
        self.at: Callable[[int], None] = lambda number: None
        via = proxy.through(store.url)
        consumer = ConsumerSettings(lease_s=LEASE_S, stop_timeout_s=5.0)
        self.settings = Settings(
            database=DatabaseSettings(url=via if link == "database" else store.url),
            broker=BrokerSettings(url="embedded:none.db"),
            consumer=consumer,
        )
        tx = (lambda: psycopg.connect(via)) if link == "handler" else None
        self.consumer = Consumer("billing", ["shop.order"], retry=FAST, tx=tx)

        @self.consumer.on(OrderPlaced)
        def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
            insert(tx, event.data.order_id)
            self.at(event.data.order_id)

    def fill(self) -> None:
        with psycopg.connect(self.store.url) as connection:
            Outbox().add_many(connection, [OrderPlaced(number) for number in range(COUNT)])
        self.store.do("update relevo_outbox set outcome = 'published', settled_at = now()")

    async def start(self) -> UUID:
        selection = Selection(topics=(), from_seq=1)
        async with Replays(self.settings, self.consumer) as replays:
            plan = await replays.plan(selection, "again")
            assert plan.runs == COUNT
            return await replays.start(selection, plan, mode="again", why="w", actor="ann")

    async def run(self, job: UUID, stop: asyncio.Event | None = None) -> None:
        async with Replays(self.settings, self.consumer) as replays:
            await replays.run(job, stop or asyncio.Event())

    async def finish(self, job: UUID) -> None:
        """As a person does who reads the error: the same command again, until it is not refused."""
        deadline = time.monotonic() + NOTICED_S
        while True:
            try:
                await self.run(job)
                break
            except RefusedError as error:
                if "is done" in str(error):
                    break
                assert time.monotonic() < deadline, error
                await asyncio.sleep(0.2)
        assert sorted(effects(self.store)) == list(range(COUNT))


@pytest.fixture(params=["database", "handler"])
def shop(request: pytest.FixtureRequest, pg_database: str) -> Any:
    store = postgres_store(pg_database)
    make_effects(store)
    with hanging(store.url) as proxy:
        found = Shop(store, proxy, request.param)
        found.fill()
        yield found


async def test_it_hangs_in_the_middle(shop: Shop) -> None:
    job = await shop.start()

    def hang(number: int) -> None:
        if number == COUNT // 2 and not shop.proxy.hung:
            shop.proxy.hang()

    shop.at = hang
    began = time.monotonic()
    with contextlib.suppress(RelevoError):
        await shop.run(job)
    assert shop.proxy.hung and time.monotonic() - began < NOTICED_S
    shop.proxy.reset()
    await shop.finish(job)


async def test_it_hangs_at_the_start(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """What Relevo asks itself ends it, with an error. For the application's connections it waits, and says so."""
    job = await shop.start()
    shop.proxy.new = "silent"
    running = asyncio.create_task(shop.run(job))
    await eventually(
        lambda: running.done() or "the database is not available: it waits" in caplog.text,
        what="it ends or says that it waits",
        timeout_s=NOTICED_S,
    )
    if running.done():
        assert isinstance(running.exception(), RelevoError)
    shop.proxy.reset()
    if not running.done():
        await running
    await shop.finish(job)


async def test_it_hangs_while_it_stops(shop: Shop) -> None:
    job, stop, loop = await shop.start(), asyncio.Event(), asyncio.get_running_loop()

    def hang(number: int) -> None:
        if number == COUNT // 2 and not shop.proxy.hung:
            loop.call_soon_threadsafe(stop.set)
            shop.proxy.hang()

    shop.at = hang
    began = time.monotonic()
    with contextlib.suppress(RelevoError):
        await shop.run(job, stop)
    assert shop.proxy.hung and time.monotonic() - began < NOTICED_S
    shop.proxy.reset()
    await shop.finish(job)
