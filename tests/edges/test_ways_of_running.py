"""Two members of one consumer, each with a way of running: what one of them runs of a key, the other one waits for, and
every message has its effect once, in order. The first member's handler stops inside; the second one works meanwhile.

PostgreSQL: on SQLite a handler that stands holds the one write lock, so that nothing can run beside it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relevo import Consumer, Event
from relevo.clients import database_for
from relevo.consumer.replaying import Replayer
from relevo.message import Message
from relevo.ops.parked import Operator, redrive
from relevo.ports.broker import Delivery
from relevo.storage.parking import Selection
from tests.edges.test_gate import hold, suspect
from tests.support.consumers import FAST, held, insert, make_effects, order, running, settings_for
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.waiting import eventually

LIVE = ["alone", "batch", "batch without a pipeline", "a handler of many", "durable"]
FIRST = [*LIVE, "drained", "redriven", "replayed"]
SECOND = [*LIVE, "replayed"]
SHORT = {("batch", "alone"), ("alone", "batch"), ("durable", "durable"), ("drained", "batch"), ("redriven", "alone")}
SHORT |= {
    ("replayed", "batch"),
    ("a handler of many", "replayed"),
    ("batch", "replayed"),
    ("alone", "a handler of many"),
}
PAIRS = [
    pytest.param(first, second, marks=[] if (first, second) in SHORT else [pytest.mark.soak])
    for first in FIRST
    for second in SECOND
    if (first, second) != ("replayed", "replayed")  # two replays of a consumer are one job, claimed by one process
]


@dataclass
class Stage:
    """What ran of key k: (begin or end, member, number). Message 1 stops in the first member until it may go on."""

    lines: list[tuple[str, str, int]] = field(default_factory=list)
    inside: threading.Event = field(default_factory=threading.Event)
    through: threading.Event = field(default_factory=threading.Event)

    def billing(self, member: str, way: str) -> Consumer:
        consumer = Consumer(
            "billing",
            ["shop.order"],
            retry=FAST,
            batch=1 if way == "alone" else None,
            pipeline=way != "batch without a pipeline",
            durable=way == "durable",
        )

        def handle(given: Any, tx: psycopg.Connection) -> None:
            for event in given if isinstance(given, list) else [given]:
                self.run(member, event, tx)

        (consumer.on_batch if way == "a handler of many" else consumer.on)(OrderPlaced)(handle)
        return consumer

    def run(self, member: str, event: Event[Any], tx: Any) -> None:
        number = event.data.order_id
        if event.key == b"k" or event.key == "k":
            self.lines.append(("begin", member, number))
        insert(tx, number, "replay" if event.replayed else "live")
        if member == "first" and number == 1:
            self.inside.set()
            assert self.through.wait(60)
        if event.key == b"k" or event.key == "k":
            self.lines.append(("end", member, number))


@contextlib.asynccontextmanager
async def replaying(
    store: Store, stage: Stage, member: str, messages: list[Message]
) -> AsyncIterator[asyncio.Task[Any]]:
    database = database_for(store.settings)
    replayer = Replayer(
        stage.billing(member, "batch"),
        settings_for(store, lease_s=4.0),
        database,
        "again",
        job_id=uuid4(),
        generation=1,
        holder=uuid4(),
    )
    page = [Delivery(message=each, shard="s0", position=at, generation=1) for at, each in enumerate(messages)]

    async def run() -> Any:
        tally = await replayer.page(page)
        await replayer.rest()
        return tally

    async def renew() -> None:
        """As `relevo replay` does, so that a busy machine costs it no key."""
        while True:
            await asyncio.sleep(0.25)
            await replayer.renew()

    task, renewing = asyncio.create_task(run()), asyncio.create_task(renew())
    try:
        yield task
        assert (await task).failures == []
    finally:
        await asyncio.wait([task])
        renewing.cancel()
        await asyncio.wait([renewing])
        await replayer.aclose()
        await database.aclose()


@contextlib.asynccontextmanager
async def first_member(store: Store, stage: Stage, way: str, message: Message) -> AsyncIterator[None]:
    """Message 1 is inside its handler."""
    async with contextlib.AsyncExitStack() as stack:
        if way == "replayed":
            await stack.enter_async_context(replaying(store, stage, "first", [message]))
        else:
            if way in ("drained", "redriven"):
                hold(store, message, since=0, holder=False, state="draining" if way == "drained" else "parked")
            broker = FakeBroker()
            await stack.enter_async_context(running(stage.billing("first", way), store, broker))
            if way == "redriven":
                database = database_for(store.settings)
                await redrive(database, Selection(consumer="billing"), Operator("ann"))
                await database.aclose()
            elif way != "drained":
                broker.append(message, order(90, "a"), order(91, "b"))  # in a batch with it, where there is one
        await eventually(stage.inside.is_set, what="message 1 is in its handler")
        try:
            yield
        finally:
            stage.through.set()


@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_one_at_a_time_in_order_and_once(pg_store: Store, first: str, second: str) -> None:
    """The second member gets message 1 again, as after a shard that changed hands, and message 2; or replays message 0,
    which was handled before. Its neighbours are handled while 1 stands in the first member."""
    make_effects(pg_store)
    stage, zero, one, two = Stage(), order(0, "k"), order(1, "k"), order(2, "k")
    handled = [zero] if second == "replayed" else [one] if first == "replayed" else []
    for message in handled:
        pg_store.do(
            "insert into relevo_inbox (consumer, event_id, generation, outcome) "
            f"values ('billing', '{message.event_id}', 0, 'done')"
        )
    try:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(first_member(pg_store, stage, first, one))
            if second == "replayed":
                behind = first in ("drained", "redriven", "durable")  # its key is held already: refused in words
                replay = replaying(pg_store, stage, "second", [zero])
                if behind:
                    with pytest.raises(AssertionError, match="Held"):
                        async with replay as task:
                            await task
                else:
                    await stack.enter_async_context(replay)
                    await eventually(lambda: pg_store.query("select 1 from relevo_held_key"), what="the key is held")
                for _ in range(20):  # as many looks as it needs to go wrong
                    await asyncio.to_thread(pg_store.query, "select 1")
                expected = [1] if behind else [1, 0]
            else:
                broker = FakeBroker()
                await stack.enter_async_context(running(stage.billing("second", second), pg_store, broker))
                if first in LIVE:
                    suspect_unless_known(pg_store, one)
                broker.append(one, two, *(order(number, f"n{number}") for number in range(10, 20)))
                await eventually(lambda: set(range(10, 20)) <= numbers(pg_store), what="the neighbours are handled")
                expected = [1, 2]
            assert stage.lines == [("begin", "first", 1)], "nothing of the key runs beside it"
            stage.through.set()
            done = {("end", number) for number in expected}
            await eventually(lambda: done <= {(what, each) for what, _, each in stage.lines}, what="all have run")
            if second != "replayed":
                await eventually(broker.all_settled, what="everything is settled")
            await eventually(lambda: held(pg_store) == [], what="the key is live again")
    finally:
        stage.through.set()
    assert [(what, number) for what, _, number in stage.lines] == [
        (what, number) for number in expected for what in ("begin", "end")
    ]
    assert [number for number in ordered(pg_store) if number < 10] == expected


def suspect_unless_known(store: Store, message: Message) -> None:
    """The first member has it in its journal; where it stored it, it has not."""
    if not store.query(f"select 1 from relevo_journal where event_id = '{message.event_id}'"):
        suspect(store, message)


def numbers(store: Store) -> set[int]:
    return set(ordered(store))


def ordered(store: Store) -> list[int]:
    return [row[0] for row in store.query("select number from effect order by effect_seq")]
