"""Handlers that raise, return and do what no handler should, with every kind of transaction, in every way of running.

Right is: the message's key is held with a reason, or the message is done with its effect; its neighbours go on, and
have their effects once; the inbox says what happened; the process lives, is healthy afterwards, and stops promptly.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from relevo import Backoff, Consumer, Retry
from relevo.clients import database_for
from relevo.consumer import replaying
from relevo.consumer.replaying import Replayer
from relevo.ids import uuid7
from relevo.message import Message
from relevo.ports.broker import Delivery
from tests.support.consumers import Running, make_effects, running, settings_for
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.hostile.deeds import DEEDS, KEEP, Deed
from tests.support.hostile.kinds import KINDS, Kind, handler_of
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.filterwarnings(
    # A coroutine that a deed returned and nobody awaited may be freed within a deed that has no builtins, where Python
    # cannot warn of it.
    "ignore:Exception ignored in. .coroutine object coroutine.<locals>.work:pytest.PytestUnraisableExceptionWarning"
)

LIVE = ["one", "batch", "pipeline", "on_batch", "durable", "drained"]
WAYS = [*LIVE, "replayed", "repaired"]
TWICE = Backoff(attempts=2, base=timedelta(milliseconds=2), cap=timedelta(milliseconds=5))
STOP_S = 10.0
OPEN = "state <> 'parked' and (due_at is null or cast(due_at as text) < '2100')"
"""A key that is to come again: not one whose handler asked for a time beyond the century."""
OVER_S = 60.0


def allowed(kind: str, way: str) -> bool:
    if way == "pipeline":
        return kind.startswith("psycopg")
    return way in ("one", "durable", "drained", "replayed", "repaired") or KINDS[kind].annotation is not None


def names_of(kind: str) -> list[str]:
    return list(KINDS[kind].deeds())


def short() -> list[Any]:
    """A covering sample: every kind in every way, and every deed with every kind; not all three with one another."""
    cases = []
    for place, kind in enumerate(KINDS):
        ways = [way for way in WAYS if allowed(kind, way)]
        for number, way in enumerate(ways):
            part = [name for at, name in enumerate(names_of(kind)) if (at + place) % len(ways) == number]
            cases.append(pytest.param(kind, way, part, id=f"{kind}-{way}"))
    return cases


def whole() -> list[Any]:
    return [
        pytest.param(kind, way, names_of(kind), id=f"{kind}-{way}")
        for kind in KINDS
        for way in WAYS
        if allowed(kind, way)
    ]


class Play:
    """Messages: every deed with a key of its own and another message behind it, and good neighbours between them."""

    def __init__(self, kind: Kind, names: Collection[str]) -> None:
        self.kind = kind
        self.deeds: dict[int, str] = {}
        self.behind: dict[int, int] = {}
        self.good: list[int] = []
        self.ids: dict[int, UUID] = {}
        self.messages: list[Message] = []
        for name in names:
            bad = self._message(f"bad {name}", name)
            self.deeds[bad] = name
            self.good.append(self._message(f"good {name}", ""))
            self.behind[bad] = self._message(f"bad {name}", "")

    def _message(self, key: str, note: str) -> int:
        number = len(self.messages)
        message = Message(
            event_id=uuid7(),
            type="shop.order.placed",
            topic="shop.order",
            payload=json.dumps({"order_id": number, "note": note}).encode(),
            created_at=datetime.now(UTC),
            key=key.encode(),
        )
        self.messages.append(message)
        self.ids[number] = message.event_id
        return number

    def faults(self, store: Store, held: Collection[UUID], *, order: bool = True) -> list[str]:
        """What is not right, in words. ``held``: messages that were given up for good, or wait behind one."""
        counts: dict[int, int] = {}
        for (number,) in store.query("select number from effect"):
            counts[number] = counts.get(number, 0) + 1
        rows = store.query("select event_id, outcome from relevo_inbox where generation = 0")
        done = {UUID(str(row[0])) for row in rows if row[1] == "done"}
        faults = []
        for number, id in self.ids.items():
            name = self.deeds.get(number)
            right = "done" if name is None else DEEDS[name].right
            what = f"{number} {name or 'neighbour'}"
            count, is_done, is_held = counts.get(number, 0), id in done, id in held
            behind = number in self.behind.values()
            if self.kind.annotation is not None and (count > 1 or (count == 1) != is_done):
                faults.append(f"{what}: {count} effects, and done is {is_done}")
            if right == "held" and (is_done or not is_held):
                faults.append(f"{what}: is to be held; done {is_done}, held {is_held}")
            if right == "done" and not behind and (not is_done or is_held or not count):
                faults.append(f"{what}: is to be done; done {is_done}, held {is_held}, {count} effects")
            if right == "either" and not (is_done or is_held):
                faults.append(f"{what}: is neither done nor held")
        for bad, follower in self.behind.items() if order else ():
            if (self.ids[bad] in held) == (self.ids[follower] in done):
                faults.append(f"{self.deeds[bad]}: held is {self.ids[bad] in held}, and the next of its key is wrong")
        return faults


@pytest.fixture
def make_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(replaying, "DELAY_MAX_S", 0.05)

    def make(kind: Kind) -> Store:
        if kind.dialect == "sqlite":
            store = sqlite_store(tmp_path / "app.db")
        else:
            store = postgres_store(request.getfixturevalue("pg_database"))
            store.do("create table deferred (number integer, unique (number) deferrable initially deferred)")
        make_effects(store)
        return store

    return make


def consumer_of(play: Play, way: str, store: Store) -> Consumer:
    consumer = Consumer(
        "billing",
        ["shop.order"],
        retry=TWICE,
        batch=1 if way in ("one", "durable", "drained") else None,
        pipeline=way == "pipeline",
        durable=way == "durable",
        inline_retry_s=0.0 if way == "drained" else 2.0,
    )

    def plan(event: Any) -> Deed | None:
        if way == "drained" and event.attempt == 1:
            raise Retry(0.001, "drained")
        return DEEDS[event.data.note] if event.data.note else None

    declare = consumer.on_batch if way == "on_batch" else consumer.on
    declare(OrderPlaced, on_replay="apply")(handler_of(play.kind, store, plan, way == "on_batch"))
    return consumer


async def play_live(play: Play, way: str, store: Store) -> None:
    broker = FakeBroker()
    broker.append(*play.messages)

    def over() -> bool:
        return broker.all_settled() and not store.query(f"select 1 from relevo_held_key where {OPEN}")

    async with running(consumer_of(play, way, store), store, broker) as member:
        try:
            await eventually(
                over, what="all messages are settled, and held keys parked", timeout_s=OVER_S, every_s=0.05
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; {open_of(play, member, store)}") from None
        assert not member.task.done()
        await eventually(lambda: member.runner.health().ready, what="it is ready", timeout_s=10)
        assert member.runner.health().live

        def idle() -> bool:
            detail = member.runner.health().detail["billing"]
            return (detail["in_flight"], detail["draining"]) == (0, 0)

        await eventually(idle, what="nothing is in flight", timeout_s=10)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < STOP_S
    rows = store.query("select event_id from relevo_held_message")
    assert "\n".join(play.faults(store, {UUID(str(row[0])) for row in rows})) == ""
    assert all(reason for (reason,) in store.query("select reason from relevo_held_key"))
    assert store.query("select count(*) from relevo_journal") == [(0,)]


def open_of(play: Play, member: Running, store: Store) -> str:
    """What is not over, for the failure's text."""
    numbers = {str(id): number for number, id in play.ids.items()}
    intake = member.runner._engines[0]._intake
    items = [] if intake is None else [numbers[item.id] for item in intake._items]
    deeds = [play.deeds.get(number, f"neighbour {number}") for number in items]
    held = store.query(f"select state, reason, attempts from relevo_held_key where {OPEN}")
    return f"in flight {deeds}, held {held}, ended {member.task.done()}, {member.runner.health()}"


async def play_again(play: Play, mode: Any, store: Store) -> None:
    settings = settings_for(store)
    database = database_for(settings.database)
    replayer = Replayer(
        consumer_of(play, mode, store), settings, database, mode, job_id=uuid4(), generation=1, holder=uuid4()
    )
    try:
        tally = await replayer.page(
            [
                Delivery(message=message, shard="s0", position=position, generation=0)
                for position, message in enumerate(play.messages)
            ]
        )
        await replayer.aclose()
    finally:
        await database.aclose()
    assert "\n".join(play.faults(store, {failure.message.event_id for failure in tally.failures})) == ""
    assert all(failure.error for failure in tally.failures)


async def play(kind: str, way: str, names: Collection[str], make_store: Any) -> None:
    store = make_store(KINDS[kind])
    made = Play(KINDS[kind], names)
    try:
        if way in ("replayed", "repaired"):
            await play_again(made, "again" if way == "replayed" else "repair", store)
        else:
            await play_live(made, way, store)
    finally:
        left = list(KEEP)
        KEEP.clear()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@pytest.mark.parametrize(("kind", "way", "names"), short())
async def test_a_hostile_handler_harms_only_its_own_key(
    kind: str, way: str, names: Collection[str], make_store: Any
) -> None:
    """Row: C1, C2, C3, D4, D5, B12 of the findings; a covering sample of the matrix."""
    await play(kind, way, names, make_store)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "way", "names"), whole())
async def test_the_whole_matrix_of_hostile_handlers(
    kind: str, way: str, names: Collection[str], make_store: Any
) -> None:
    await play(kind, way, names, make_store)


def test_every_deed_and_every_kind_is_in_the_short_form() -> None:
    """A deed that is added runs with every kind that allows it; a kind runs in every way."""
    for kind in KINDS:
        ran = {name for case in short() if case.values[0] == kind for name in case.values[2]}
        assert ran == set(names_of(kind))
    assert {name for kind in KINDS for name in names_of(kind)} == set(DEEDS)
