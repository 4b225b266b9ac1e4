"""Replays over a whole system: outbox, relay, broker, consumer, effects; SQLite + embedded and PostgreSQL + Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from relevo import Consumer, Event, Outbox, Relay
from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.consumer import ConsumerRunner, Reject
from relevo.effects import EffectRequest, Registry, effect, once
from relevo.errors import MisuseError, RefusedError
from relevo.message import Message
from relevo.ops import purge as purging
from relevo.ops.replay import Plan, Replays
from relevo.ops.replay_sources import Selection
from relevo.ops.replay_turn import Report
from relevo.settings import (
    BrokerSettings,
    ConsumerSettings,
    EffectsSettings,
    RelaySettings,
    RetentionSettings,
    Settings,
)
from tests.support.consumers import FAST, order
from tests.support.effects import states
from tests.support.events import OrderPlaced
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.waiting import eventually

ORDERS = 24


@dataclass
class Shop:
    """A consumer with a read model (``apply``), a log of another type (``skip``) and a card charged once per order."""

    store: Store
    settings: Settings
    topic: str
    charged: list[str] = field(default_factory=list)
    runs: list[tuple[str, int, bool]] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        charged = self.charged

        @effect("charge-card", registry=Registry())
        async def charge(request: EffectRequest) -> None:
            charged.append(request.key)

        self.charge = charge
        billing = self.billing = Consumer("billing", [self.topic], retry=FAST)

        @billing.on(OrderPlaced, on_replay="apply")
        def project(event: Event[OrderPlaced], tx: Any) -> None:
            number = event.data.order_id
            self.runs.append(("placed", number, event.replayed))
            if number in self.broken:
                raise Reject("the new code cannot")
            mark = "%s" if self.store.is_postgres else "?"
            once(tx, charge, key=number)
            tx.execute(
                f"insert into model (number, note, version) values ({mark}, {mark}, 1) on conflict (number) do update "
                "set note = excluded.note, version = excluded.version where model.version <= excluded.version",
                (number, event.data.note),
            )

        @billing.on("shop.order.shipped")
        def log(event: Event[Message], tx: Any) -> None:
            self.runs.append(("shipped", int(json.loads(event.data.payload or b"0")["order_id"]), event.replayed))

    def add(self, numbers: range, *, keys: int = 4) -> None:
        outbox = Outbox()
        with contextlib.closing(self.store.connect()) as connection:
            if not self.store.is_postgres:
                connection.execute("begin immediate")
            for number in numbers:
                outbox.add(connection, OrderPlaced(number), topic=self.topic, key=f"k{number % keys}")
            connection.commit()

    def elsewhere(self) -> tuple[str, dict[str, Any]]:
        """Where else than in the outbox the messages are."""
        if broker_for(self.settings.broker.url).capabilities.keeps_history:
            return "broker", {"from_seq": None, "since": _long_ago()}
        return "archive", {"from_seq": 1}

    async def archive(self) -> None:
        """Everything that is settled moves to the archive."""
        self.store.do("update relevo_outbox set settled_at = settled_at - interval '30 days'")
        database = database_for(self.store.settings)
        settings = msgspec.structs.replace(self.settings, retention=RetentionSettings(then="archive", pause_s=0.0))
        assert (await purging.purge(database, settings, ["outbox"], actor="me")).outbox == ORDERS
        assert self.store.query("select count(*) from relevo_outbox") == [(0,)]
        await database.aclose()

    def model(self) -> list[int]:
        return [row[0] for row in self.store.query("select number from model order by number")]

    @contextlib.asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        """Relay, consumer and effects."""
        async with Relay(self.settings):
            runner = ConsumerRunner(self.billing, self.settings, effects=[self.charge])
            ready = asyncio.Event()
            task = asyncio.create_task(runner.run(on_ready=ready.set))
            await ready.wait()
            try:
                yield
            finally:
                runner.stop()
                await task

    async def all_done(self, count: int) -> None:
        await eventually(lambda: len(self.model()) == count, what="the read model is complete", timeout_s=40)
        await eventually(lambda: list(states(self.store).values()) == ["done"] * count, what="all cards charged")

    async def replay(self, mode: Any = "repair", **selection: Any) -> tuple[Plan, Report]:
        async with Replays(self.settings, self.billing) as replays:
            chosen = Selection(topics=(), **({"from_seq": 1} | selection))
            plan = await replays.plan(chosen, mode)
            job = await replays.start(chosen, plan, mode=mode, why="a bug in the model", actor="ann")
            return plan, await replays.run(job, asyncio.Event())


@pytest.fixture(params=["sqlite+embedded", "postgresql+kafka"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    topic = f"shop.order.{secrets.token_hex(4)}"
    if request.param == "sqlite+embedded":
        store, broker = sqlite_store(tmp_path / "app.db"), f"embedded:{tmp_path / 'broker.db'}"
    else:
        url = "kafka_url" if request.param == "postgresql+kafka" else "rabbitmq_url"
        store, broker = postgres_store(request.getfixturevalue("pg_database")), str(request.getfixturevalue(url))
    settings = Settings(
        database=store.settings,
        broker=BrokerSettings(url=broker),
        consumer=ConsumerSettings(lease_s=3.0, threads=4),
        effects=EffectsSettings(poll_s=0.05),
        relay=RelaySettings(lease_s=5.0, send_timeout_s=1.0),
    )
    await broker_for(broker).ensure_topics([topic])
    if not broker_for(broker).capabilities.keeps_history:
        await (await broker_for(broker).subscribe("billing", [topic])).aclose()  # a queue keeps what comes after this
    store.do("create table model (number integer primary key, note text, version integer)")
    return Shop(store, settings, topic)


@pytest.mark.parametrize("shop", ["sqlite+embedded", "postgresql+kafka", "postgresql+rabbitmq"], indirect=True)
async def test_yesterday_again_repairs_the_model_and_charges_no_card_twice(shop: Shop) -> None:
    """FAILURES row 41. The read model is lost, and the same consumer charges cards. Repair, from the outbox,
    and from the broker's history or, where it keeps none, from the archive; then *again*, with all handlers; beside
    live consumers. The model is whole each
    time, and every card was charged once."""
    shop.add(range(ORDERS))
    async with shop.live():
        await shop.all_done(ORDERS)
        await eventually(lambda: shop.store.unsettled() == 0, what="all is settled")
        for source, selection in (("outbox", {"from_seq": 1}), shop.elsewhere()):
            if source == "archive":
                await shop.archive()
                source = "outbox"
            shop.store.do("delete from model where number >= 5")
            shop.runs.clear()
            plan, report = await shop.replay(source=source, **selection)
            assert (plan.total, plan.runs, report.handled, report.state) == (ORDERS, ORDERS, ORDERS, "done")
            assert shop.model() == list(range(ORDERS)), source
            assert all(replayed for _, _, replayed in shop.runs) and len(shop.runs) == ORDERS
        shop.store.do("delete from model")
        _, report = await shop.replay("again")
        assert report.handled == ORDERS and shop.model() == list(range(ORDERS))
        shop.add(range(ORDERS, ORDERS + 4))
        await shop.all_done(ORDERS + 4)
    assert sorted(shop.charged, key=int) == [str(number) for number in range(ORDERS + 4)]
    assert shop.store.query("select count(*) from relevo_held_key") == [(0,)]
    audit = shop.store.query(
        "select actor, action, reason, count from relevo_audit where action <> 'purge' order by audit_id"
    )
    assert audit == [("ann", f"replay.{mode}", "a bug in the model", ORDERS) for mode in ("repair", "repair", "again")]


async def test_again_keeps_the_order_of_a_key_against_live_traffic(shop: Shop) -> None:
    """While a key is replayed *again*, new events of it arrive: they run after the replay of that key, none is lost."""
    shop.add(range(ORDERS), keys=1)
    async with shop.live():
        await shop.all_done(ORDERS)
        shop.runs.clear()
        async with Replays(shop.settings, shop.billing) as replays:
            selection = Selection(topics=(), to_seq=ORDERS)
            plan = await replays.plan(selection, "again")
            job = await replays.start(selection, plan, mode="again", why="w", actor="ann", rate=20.0)
            task = asyncio.create_task(replays.run(job, asyncio.Event()))
            await eventually(lambda: shop.runs, what="the replay has begun")
            shop.add(range(ORDERS, ORDERS + 6), keys=1)
            await task
        await shop.all_done(ORDERS + 6)
    assert [number for _, number, _ in shop.runs] == list(range(ORDERS + 6))
    assert [replayed for _, _, replayed in shop.runs] == [True] * ORDERS + [False] * 6


async def test_again_waits_for_what_had_found_its_key_live(shop: Shop) -> None:
    """A transaction that looked at the key before it was held is still open: nothing of the replay runs before it ends.
    (SQLite has one writer, so there it cannot be open.)"""
    if not shop.store.is_postgres:
        pytest.skip("one writer at a time")
    shop.add(range(4), keys=1)
    async with shop.live():
        await shop.all_done(4)
    shop.runs.clear()
    with contextlib.closing(shop.store.connect()) as slow:
        slow.execute("select * from relevo_held_key where consumer = 'billing' for update")
        task = asyncio.create_task(shop.replay("again"))
        await eventually(lambda: shop.store.query("select 1 from relevo_held_key"), what="the key is held")
        for _ in range(20):  # as many looks as the replay itself needs to go wrong
            await asyncio.to_thread(shop.store.query, "select 1")
        assert shop.runs == []
        slow.rollback()
        await task
    assert [number for _, number, _ in shop.runs] == list(range(4))


async def test_a_stopped_replay_goes_on_where_it_was(shop: Shop) -> None:
    """Stop after the first page; resume: *again* runs each message once in its generation."""
    shop.add(range(ORDERS))
    async with shop.live():
        await shop.all_done(ORDERS)
    shop.runs.clear()
    stop = asyncio.Event()
    async with Replays(shop.settings, shop.billing) as replays:
        selection = Selection(topics=(), from_seq=1)
        plan = await replays.plan(selection, "again")
        job = await replays.start(selection, plan, mode="again", why="w", actor="ann", rate=5.0)
        first = await replays.run(job, stop, lambda report: stop.set())
        assert first.state == "paused" and first.handled == 5
    async with Replays(shop.settings, shop.billing) as replays:
        shop.store.do("update relevo_job set rate = null")
        second = await replays.run(job, asyncio.Event())
        assert (second.state, second.done, second.handled) == ("done", ORDERS, ORDERS - 5)
        with pytest.raises(RefusedError, match="is done"):
            await replays.run(job, asyncio.Event())
    assert sorted(number for _, number, _ in shop.runs) == list(range(ORDERS))
    assert shop.store.query("select count(*) from relevo_keep") == [(0,)]


async def test_what_cannot_run_keeps_its_key_in_order_and_runs_after_the_mend(shop: Shop) -> None:
    """One message fails: the later ones of its key are left out, other keys are complete, all is listed; after the
    mend, resuming does the rest."""
    shop.add(range(ORDERS))
    async with shop.live():
        await shop.all_done(ORDERS)
    shop.broken = {6}
    shop.store.do("delete from model")
    shop.runs.clear()
    _, report = await shop.replay("again")
    behind = list(range(6, ORDERS, 4))
    assert report.state == "failed" and report.failed == len(behind)
    assert shop.model() == [number for number in range(ORDERS) if number not in behind]
    failures = shop.store.query("select error_type, count(*) from relevo_replay_failure group by error_type")
    assert dict(failures)["Behind"] == len(behind) - 1
    shop.broken = set()
    (job,) = shop.store.query("select job_id from relevo_job")
    async with Replays(shop.settings, shop.billing) as replays:
        report = await replays.run(UUID(str(job[0])), asyncio.Event())
    assert report.state == "done" and shop.model() == list(range(ORDERS))
    runs = [number for _, number, _ in shop.runs if number % 4 == 2]
    assert [number for number in runs if number != 6] == sorted(number for number in set(runs) if number != 6)


async def test_a_plan_counts_and_a_selection_must_say_something(shop: Shop) -> None:
    """The dry run is exact, by type and handler, and changes nothing; an empty selection is refused, a foreign topic
    too; a key and a range select."""
    shop.add(range(ORDERS))
    with contextlib.closing(shop.store.connect()) as connection:
        if not shop.store.is_postgres:
            connection.execute("begin immediate")
        shipped = msgspec.structs.replace(order(1, type="shop.order.shipped"), topic=shop.topic)
        Outbox().add_message(connection, shipped)
        connection.commit()
    async with Replays(shop.settings, shop.billing) as replays:
        nothing = await replays.plan(Selection(topics=(), from_seq=1), "repair")
        assert nothing.total == 0  # nothing is published yet
        async with shop.live():
            await shop.all_done(ORDERS)
            await eventually(lambda: ("shipped", 1, False) in shop.runs, what="shipped is handled")
            await eventually(lambda: shop.store.unsettled() == 0, what="all is settled")
        shop.runs.clear()
        plan = await replays.plan(Selection(topics=(), from_seq=1), "repair")
        assert [(each.type, each.count, each.runs) for each in plan.types] == [
            ("shop.order.placed", ORDERS, True),
            ("shop.order.shipped", 1, False),
        ]
        assert (plan.total, plan.runs) == (ORDERS + 1, ORDERS)
        assert (await replays.plan(Selection(topics=(), key="k1"), "again")).total == ORDERS // 4
        assert (await replays.plan(Selection(topics=(), from_seq=3, to_seq=7), "again")).total == 5
        assert (await replays.plan(Selection(topics=(), until=_long_ago()), "again")).total == 0
        with pytest.raises(MisuseError, match="nothing is selected"):
            await replays.plan(Selection(topics=()), "repair")
        with pytest.raises(RefusedError, match="does not read"):
            await replays.plan(Selection(topics=("other",), from_seq=1), "repair")
    assert shop.runs == [] and shop.store.query("select count(*) from relevo_job") == [(0,)]


async def test_into_another_topic(shop: Shop) -> None:
    """The same messages, ids, keys and order, in a topic of their own; the consumer of the first sees nothing."""
    shop.add(range(ORDERS))
    async with shop.live():
        await shop.all_done(ORDERS)
        await eventually(lambda: shop.store.unsettled() == 0, what="all is settled")
    broker = broker_for(shop.settings.broker.url)
    target = f"{shop.topic}.copy"
    await broker.ensure_topics([target])
    async with Replays(shop.settings, None) as replays:
        selection = Selection(topics=(shop.topic,), from_seq=1, into=target)
        plan = await replays.plan(selection, "into")
        job = await replays.start(selection, plan, mode="into", why="for the new team", actor="ann")
        report = await replays.run(job, asyncio.Event())
    assert (report.state, report.handled) == ("done", ORDERS)
    history = await broker.history([target])  # type: ignore[attr-defined]
    try:
        got: list[Message] = []
        while deliveries := await history.take(100):
            got += [delivery.message for delivery in deliveries]
    finally:
        await history.aclose()
    assert {str(message.event_id) for message in got} == {
        str(row[0]) for row in shop.store.query("select event_id from relevo_outbox")
    }
    for key in range(4):
        numbers = [json.loads(m.payload or b"")["order_id"] for m in got if m.key == f"k{key}".encode()]
        assert numbers == list(range(key, ORDERS, 4))


def _long_ago() -> datetime:
    return datetime(2020, 1, 1, tzinfo=UTC)
