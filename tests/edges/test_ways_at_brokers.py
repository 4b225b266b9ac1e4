"""Ways of running that meet, at real brokers and on both databases: a message that is given to another member while its
handler stands, drained or replayed beside live ones; and the acts that its handler recorded, whatever runs it again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from relevo import Consumer, Event, Retry
from relevo.effects import EffectRequest, Registry, effect, once
from tests.edges.test_ways_of_running import replaying
from tests.support.consumers import FAST, Running, effects, held, insert, make_effects, order, running
from tests.support.consuming import Consuming
from tests.support.effects import performing, states
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store
from tests.support.waiting import eventually

LIVE = ["alone", "batch", "batch without a pipeline", "a handler of many", "durable"]
SHORT = {("redelivered", "alone", "batch"), ("drained", "batch", "batch"), ("replayed", "batch", "alone")}
MEETINGS = [
    pytest.param(how, first, second, marks=[] if (how, first, second) in SHORT else [pytest.mark.soak])
    for how in ("redelivered", "drained", "replayed")
    for first, second in [("alone", "batch"), ("batch", "batch"), ("batch", "alone"), ("durable", "alone")]
]
NEIGHBOURS = range(10, 20)


@dataclass
class Stage:
    """Message 1 stops in the first handler that has it in the way asked for (``how``) until it may go on."""

    how: str = ""
    name: str = "billing"
    topic: str = "shop.order"
    charge: Any = None
    lines: list[tuple[str, int]] = field(default_factory=list)
    inside: threading.Event = field(default_factory=threading.Event)
    through: threading.Event = field(default_factory=threading.Event)
    stands_in: str = ""

    def billing(self, member: str, way: str) -> Consumer:
        consumer = Consumer(
            self.name,
            [self.topic],
            retry=FAST,
            batch=1 if way == "alone" else None,
            pipeline=way != "batch without a pipeline",
            durable=way == "durable",
            inline_retry_s=0.0,
        )

        def handle(given: Any, tx: Any) -> None:
            for event in given if isinstance(given, list) else [given]:
                self.run(member, event, tx)

        (consumer.on_batch if way == "a handler of many" else consumer.on)(OrderPlaced, on_replay="apply")(handle)
        return consumer

    def run(self, member: str, event: Event[Any], tx: Any) -> None:
        number = event.data.order_id
        if number == 1 and self.how == "drained" and event.attempt == 1:
            raise Retry(0.001, "to be drained")
        if event.key in ("k", b"k"):
            self.lines.append(("begin", number))
        insert(tx, number)
        if self.charge is not None:
            once(tx, self.charge, key=number)
        wanted = event.replayed if self.how == "replayed" else bool(self.how)
        if wanted and number == 1 and not self.inside.is_set():
            self.stands_in = member
            self.inside.set()
            assert self.through.wait(60)
        if event.key in ("k", b"k"):
            self.lines.append(("end", number))


async def lose_its_shards(member: Running) -> None:
    """As a member that the broker takes for dead: what it has in hand is given to the others."""
    intake = member.runner._engines[0]._intake
    assert intake is not None
    await intake._subscription.aclose()


@pytest.mark.xdist_group("ways at brokers")
@pytest.mark.parametrize(("how", "first", "second"), MEETINGS)
async def test_two_ways_that_meet_at_a_broker(consuming: Consuming, how: str, first: str, second: str) -> None:
    """One at a time, in order, once; other keys go on meanwhile (on SQLite there is one writer: they wait)."""
    store, stage = consuming.store, Stage(how, consuming.consumer, consuming.topic)
    one, two = consuming.order(1), consuming.order(2)
    try:
        async with contextlib.AsyncExitStack() as stack:
            members = {
                name: await stack.enter_async_context(running(stage.billing(name, way), store, consuming.broker))
                for name, way in (("first", first), ("second", second))
            }
            await consuming.publish(one)
            if how == "replayed":
                await eventually(lambda: effects(store) == [1], what="1 is handled", timeout_s=60)
                await stack.enter_async_context(replaying(store, stage, "replay", [one]))  # type: ignore[arg-type]
            await eventually(stage.inside.is_set, what="message 1 is in its handler", timeout_s=60)
            if how == "redelivered":
                await lose_its_shards(members[stage.stands_in])
            await consuming.publish(two, *(consuming.order(number, f"n{number}") for number in NEIGHBOURS))
            if store.is_postgres:
                await eventually(
                    lambda: set(NEIGHBOURS) <= set(effects(store)), what="the neighbours are handled", timeout_s=60
                )
            begun = [("begin", 1)] if how != "replayed" else [("begin", 1), ("end", 1), ("begin", 1)]
            assert stage.lines == begun, "nothing of the key runs beside it"
            stage.through.set()
            everything = {1, 2, *NEIGHBOURS}
            await eventually(lambda: everything <= set(effects(store)), what="all are handled", timeout_s=60)
            await eventually(lambda: held(store) == [], what="the key is live again", timeout_s=60)
    finally:
        stage.through.set()
    rest = [("end", 1), ("begin", 2), ("end", 2)]
    assert stage.lines == begun + rest
    ran = effects(store)
    assert [number for number in ran if number < 10] == ([1, 1, 2] if how == "replayed" else [1, 2])
    assert sorted(number for number in ran if number >= 10) == list(NEIGHBOURS)


SHORT_ACTS = {("batch", "redelivered"), ("alone", "replayed"), ("a handler of many", "replayed")}
ACTS = [
    pytest.param(way, again, marks=[] if (way, again) in SHORT_ACTS else [pytest.mark.soak])
    for way in LIVE
    for again in ("redelivered", "replayed")
]


@pytest.mark.xdist_group("ways at brokers")
@pytest.mark.parametrize(("way", "again"), ACTS)
async def test_an_act_is_performed_once_whatever_runs_its_message_again(store: Store, way: str, again: str) -> None:
    """The act of message 1 stands in one of two runners meanwhile; the other acts are performed."""
    make_effects(store)
    acts: list[str] = []
    through = asyncio.Event()

    @effect("charge", registry=Registry(), timeout_s=60)
    async def charge(request: EffectRequest) -> None:
        acts.append(request.key)
        if request.key == "1":
            await through.wait()

    stage, messages = Stage(charge=charge), [order(number, "k") for number in (1, 2, 3)]
    async with performing([charge], store), performing([charge], store), contextlib.AsyncExitStack() as stack:
        try:
            broker, other = FakeBroker(), FakeBroker()
            broker.append(*messages)
            await stack.enter_async_context(running(stage.billing("first", way), store, broker))
            await eventually(lambda: sorted(acts) == ["1", "2", "3"], what="the acts of all began")
            await eventually(broker.all_settled, what="the messages are settled")
            if again == "replayed":
                async with replaying(store, stage, "replay", messages):  # type: ignore[arg-type]
                    pass
            else:
                await stack.enter_async_context(running(stage.billing("second", way), store, other))
                other.append(*messages, order(4, "k"))
                await eventually(other.all_settled, what="they are settled again")
            wanted = {"1": "sent", "2": "done", "3": "done"} | ({} if again == "replayed" else {"4": "done"})
            await eventually(lambda: states(store) == wanted, what="all but the first are done")
        finally:
            through.set()
        await eventually(lambda: set(states(store).values()) == {"done"}, what="the first is done, too")
    assert sorted(acts) == sorted(wanted)
    assert len(effects(store)) == (6 if again == "replayed" else 4)
