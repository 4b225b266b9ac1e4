"""A handler's own statement whose answer never comes: the connection hangs, the database and everything else is well.

Right is: the run ends within a few leases, its key and its thread are free, and the message is handled once. A
statement that is slow, and a handler that is slow while its connection is idle, are waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from relevo import Consumer, Event
from tests.support.consumers import effects
from tests.support.hung import LEASE_S, SLACK_S, STOP_S, Scene, scene
from tests.support.waiting import eventually

MARK = "hang_here"
HANGS = f"select '{MARK}'"
INSERT = "insert into effect (number, what) values ({}, '')"


def _url(via: str, driver: str) -> str:
    return f"postgresql+{driver}:{via.partition(':')[2]}"


KINDS: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "psycopg": (psycopg.Connection, lambda via: lambda: psycopg.connect(via)),
    "async psycopg": (psycopg.AsyncConnection, lambda via: lambda: psycopg.AsyncConnection.connect(via)),
    "asyncpg": (asyncpg.Connection, lambda via: lambda: asyncpg.connect(via)),
    "connection": (Connection, lambda via: create_engine(_url(via, "psycopg"))),
    "session": (Session, lambda via: sessionmaker(create_engine(_url(via, "psycopg")))),
    "async connection": (AsyncConnection, lambda via: create_async_engine(_url(via, "psycopg"))),
    "async session": (AsyncSession, lambda via: async_sessionmaker(create_async_engine(_url(via, "psycopg")))),
    "async connection on asyncpg": (AsyncConnection, lambda via: create_async_engine(_url(via, "asyncpg"))),
    "async session on asyncpg": (
        AsyncSession,
        lambda via: async_sessionmaker(create_async_engine(_url(via, "asyncpg"))),
    ),
}
SHORT = {"psycopg", "asyncpg", "session"}
ALONE = [pytest.param(kind, marks=() if kind == "psycopg" else pytest.mark.soak) for kind in KINDS]
EACH = [pytest.param(kind, marks=() if kind in SHORT else pytest.mark.soak) for kind in KINDS]


class Steps:
    """What the handler does, the first time and from the second time on."""

    def __init__(self, first: str, pause_s: float = 0.0) -> None:
        self.first, self.pause_s = first, pause_s
        self.runs: list[int] = []

    def of(self, number: int) -> str | None:
        again = number in self.runs
        self.runs.append(number)
        return None if again else self.first


def _consumer(kind: str, steps: Steps, name: str, make: Any) -> tuple[Consumer, Any]:
    annotation = KINDS[kind][0]
    consumer = Consumer(f"c-{name}", [name], tx=make)

    def said(sql: str) -> Any:
        return text(sql) if annotation.__module__.startswith("sqlalchemy") else sql

    if annotation in (psycopg.Connection, Connection, Session):

        def handle(event: Any, tx: Any) -> None:
            tx.execute(said(INSERT.format(event.data.order_id)))
            if (first := steps.of(event.data.order_id)) is not None:
                tx.execute(said(first))
                time.sleep(steps.pause_s)

        function: Any = handle
    else:

        async def ahandle(event: Any, tx: Any) -> None:
            await tx.execute(said(INSERT.format(event.data.order_id)))
            if (first := steps.of(event.data.order_id)) is not None:
                await tx.execute(said(first))
                await asyncio.sleep(steps.pause_s)

        function = ahandle
    function.__annotations__["tx"] = annotation
    return consumer, function


@asynccontextmanager
async def stage(pg_database: str, folder: Path, kind: str, steps: Steps) -> AsyncIterator[Scene]:
    def make(placed: Any, topic: str, via: str) -> Consumer:
        consumer, function = _consumer(kind, steps, topic, KINDS[kind][1](via))
        function.__annotations__["event"] = Event[placed]
        consumer.on(placed)(function)
        return consumer

    async with scene(pg_database, folder, broker="embedded", link="handler", make_consumer=make) as found:
        yield found


@pytest.mark.parametrize("how", ["swallowed", pytest.param("answer lost", marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", EACH)
async def test_the_connection_is_found_to_hang(pg_database: str, tmp_path: Path, kind: str, how: str) -> None:
    steps = Steps(HANGS)
    async with stage(pg_database, tmp_path, kind, steps) as found:
        proxy = found.proxies["handler"]
        setattr(proxy, "hang_before" if how == "swallowed" else "hang_after", MARK.encode())
        found.add(1)
        await asyncio.to_thread(proxy.caught)
        began = time.monotonic()
        await found.handled("it is handled again", timeout_s=3 * LEASE_S + 20)
        assert time.monotonic() - began > LEASE_S / 3
        await found.even()
        assert steps.runs == [0, 0]


@pytest.mark.parametrize("kind", ALONE)
async def test_a_slow_statement_and_a_slow_handler_are_waited_for(pg_database: str, tmp_path: Path, kind: str) -> None:
    slow_s = 1.5 * LEASE_S
    steps = Steps(f"select pg_sleep({slow_s})", pause_s=slow_s)
    async with stage(pg_database, tmp_path, kind, steps) as found:
        found.add(1)
        await found.handled("it is handled", timeout_s=2 * slow_s + 40)
        await found.even()
        assert steps.runs == [0]


LARGE = 16 * 2**20


@pytest.mark.parametrize("kind", ALONE)
async def test_a_statement_that_is_long_on_its_way_is_waited_for(pg_database: str, tmp_path: Path, kind: str) -> None:
    """The server waits for the rest of it, and the driver for the answer; data moves meanwhile."""
    steps = Steps(f"select length('{'x' * LARGE}')")
    async with stage(pg_database, tmp_path, kind, steps) as found:
        found.proxies["handler"].slow_up_s = 3 * LEASE_S * 65_536 / LARGE
        found.add(1)
        await found.handled("it is handled", timeout_s=3 * LEASE_S + 60)
        await found.even()
        assert steps.runs == [0]


@pytest.mark.parametrize("kind", ALONE)
async def test_a_stop_does_not_wait_for_it(pg_database: str, tmp_path: Path, kind: str) -> None:
    """The scene holds that the consumer leaves in its bound, and here every other connection of the database's is
    refused, too."""
    steps = Steps(HANGS)
    async with stage(pg_database, tmp_path, kind, steps) as found:
        proxy = found.proxies["handler"]
        proxy.hang_before, proxy.new = MARK.encode(), "work"
        found.add(1)
        await asyncio.to_thread(proxy.caught)
        proxy.new = "silent"
        found.runner.stop()
        began = time.monotonic()
        await eventually(
            lambda: not found.runner.health().live, what="it has left", timeout_s=STOP_S + 20, every_s=0.05
        )
        assert time.monotonic() - began < STOP_S + SLACK_S
        assert effects(found.store) == []


SLOW_S = 2 * LEASE_S


def _stream(event: Any, tx: psycopg.Connection[Any]) -> None:
    tx.execute(INSERT.format(event.data.order_id))
    for number, _ in enumerate(tx.cursor().stream("select generate_series(1, 5)")):
        time.sleep(SLOW_S if number == 2 else 0)


async def _astream(event: Any, tx: psycopg.AsyncConnection[Any]) -> None:
    await tx.execute(INSERT.format(event.data.order_id))
    async for row in tx.cursor().stream("select generate_series(1, 5)"):
        await asyncio.sleep(SLOW_S if row[0] == 3 else 0)


async def _copy(event: Any, tx: asyncpg.Connection[Any]) -> None:
    async def sink(data: bytes) -> None:
        await asyncio.sleep(SLOW_S / 5)

    await tx.execute(INSERT.format(event.data.order_id))
    await tx.copy_from_query("select generate_series(1, 5)", output=sink)


async def _portal(event: Any, tx: asyncpg.Connection[Any]) -> None:
    await tx.execute(INSERT.format(event.data.order_id))
    async for row in tx.cursor("select generate_series(1, 5)"):
        await asyncio.sleep(SLOW_S if row[0] == 3 else 0)


def _copy_in(event: Any, tx: psycopg.Connection[Any]) -> None:
    tx.execute(INSERT.format(event.data.order_id))
    with tx.cursor().copy("copy effect (number, what) from stdin") as copy:
        time.sleep(SLOW_S)
        del copy


READERS: dict[str, tuple[str, Any]] = {
    "stream": ("psycopg", _stream),
    "async stream": ("async psycopg", _astream),
    "copy out": ("asyncpg", _copy),
    "portal": ("asyncpg", _portal),
    "copy in": ("psycopg", _copy_in),
}


@pytest.mark.parametrize(
    "reader", [pytest.param(each, marks=() if each == "stream" else pytest.mark.soak) for each in READERS]
)
async def test_a_handler_that_reads_slowly_is_waited_for(pg_database: str, tmp_path: Path, reader: str) -> None:
    """The server has sent everything and waits, and the driver counts the statement as under way."""
    kind, function = READERS[reader]
    begun: list[int] = []

    def make(placed: Any, topic: str, via: str) -> Consumer:
        consumer = Consumer(f"c-{topic}", [topic], tx=KINDS[kind][1](via))

        def noted(event: Any) -> None:
            begun.append(event.data.order_id)

        if asyncio.iscoroutinefunction(function):

            async def handle(event: Any, tx: Any) -> None:
                noted(event)
                await function(event, tx)

            chosen: Any = handle
        else:

            def blocking(event: Any, tx: Any) -> None:
                noted(event)
                function(event, tx)

            chosen = blocking
        chosen.__annotations__ |= {"tx": KINDS[kind][0], "event": Event[placed]}
        consumer.on(placed)(chosen)
        return consumer

    async with scene(pg_database, tmp_path, broker="embedded", link="handler", make_consumer=make) as found:
        found.add(1)
        await found.handled("it is handled", timeout_s=SLOW_S + 40)
        await found.even()
        assert begun == [0]
