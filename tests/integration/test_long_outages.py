"""Half an hour without the broker or the database, by a simulated clock: the relay and the consumer as they are, their
waits, leases and backoffs in full length, on SQLite. The broker is a fake that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from relevo import Consumer, Event
from relevo.clients.sqlite import SqliteDatabase
from relevo.consumer.runner import ConsumerRunner
from relevo.errors import UnreachableError
from relevo.message import Message
from relevo.outcome import Accepted, PublishOutcome, Unavailable, Unconfirmed
from relevo.relay import Relay, service
from relevo.script import Script
from relevo.settings import ConsumerSettings, RelaySettings, Settings
from tests.support.consumers import FAST, insert, make_effects, order
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import FakePublisher, Store, sqlite_store
from tests.support.simulated import SimulatedLoop, connect, simulate

T = TypeVar("T")

AWAY_S = 1800.0
PROBE_S = (0.125, 0.25)
"""Between probes, once the backoff has reached its cap: half of it and a random part of the other half."""
LEASE_S = 15.0
BATCH = 100
TOPICS = ("shop.order", "shop.note")


@dataclass
class Wire(FakePublisher):
    """``away``: topics that are. Of those in ``swallow`` one more batch is stored, and its confirmation is lost."""

    loop: SimulatedLoop = field(default_factory=SimulatedLoop)
    away: set[str] = field(default_factory=set)
    swallow: set[str] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    times: list[float] = field(default_factory=list)
    probed: list[float] = field(default_factory=list)

    async def publish(self, messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
        async with self.turn:  # calls are worked on in the order in which they came
            await asyncio.sleep(0.003)  # as a broker would take
            return self._store(messages)

    def _store(self, messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
        outcomes: dict[int, PublishOutcome] = {}
        for index, message in enumerate(messages):
            if message.topic in self.away and message.topic not in self.swallow:
                outcomes[index] = Unavailable("connection refused")
                continue
            self.log.append(message)
            self.times.append(self.loop.time())
            if message.topic in self.away:
                outcomes[index] = Unconfirmed("the connection was lost before the confirm")
        self.swallow -= {message.topic for message in messages}
        return outcomes

    async def probe(self, topic: str) -> PublishOutcome:
        self.probed.append(self.loop.time())
        return Unavailable("connection refused") if topic in self.away else Accepted()

    def seen(self, topic: str) -> list[Message]:
        return [message for message in self.log if message.topic == topic]


@dataclass
class WireBroker:
    wire: Wire
    url: str = "fake:"

    async def publisher(self, **_: Any) -> Wire:
        return self.wire


class Flaky(SqliteDatabase):
    """A database that can be away."""

    away = False
    asked = 0

    async def run(self, script: Script[T], **options: Any) -> T:
        if self.away:
            self.asked += 1
            raise UnreachableError("the database does not answer")
        return await super().run(script, **options)


@dataclass
class Scene:
    """A relay in simulated time, and what the test looks at."""

    loop: SimulatedLoop
    store: Store
    wire: Wire
    database: Flaky
    relay: Relay
    written: dict[str, int] = field(default_factory=dict)

    def write(self, topic: str, count: int) -> None:
        """``count`` events; payloads count up within the topic, ten keys in turn."""
        connection = connect(self.store.url, self.loop)
        begin = self.written.get(topic, 0)
        connection.execute("begin immediate")
        for number in range(begin, begin + count):
            self.store.append(connection, b"k%d" % (number % 10), number, topic)
        connection.execute("commit")
        connection.close()
        self.written[topic] = begin + count

    def unsettled(self, topic: str) -> int:
        return int(
            self.store.query(f"select count(*) from relevo_outbox where settled_at is null and topic = '{topic}'")[0][0]
        )

    async def until_out(self, topic: str, timeout_s: float = 30.0) -> float:
        """Until everything of ``topic`` is settled; the simulated seconds that took."""
        began = self.loop.time()
        async with asyncio.timeout(timeout_s):
            while self.unsettled(topic):
                await asyncio.sleep(0.1)
        return self.loop.time() - began

    def leased_s(self) -> float:
        """Seconds by the database's clock until the first lease of a lane ends."""
        connection = connect(self.store.url, self.loop)
        try:
            sql = "select min(expires_at) / 1000.0 from relevo_lane where holder is not null"
            return float(connection.execute(sql).fetchone()[0]) - self.loop.wall().timestamp()
        finally:
            connection.close()

    def check_books(self, topic: str, doubles_max: int) -> None:
        """Everything of ``topic`` went out in order of its key; at most one batch twice; nothing held or counted."""
        seen = [int(message.payload or b"") for message in self.wire.seen(topic)]
        first = list(dict.fromkeys(seen))
        assert sorted(first) == list(range(self.written[topic]))
        for key in range(10):
            of_key = [number for number in first if number % 10 == key]
            assert of_key == sorted(of_key)
        assert len(seen) - len(first) <= doubles_max
        assert self.store.query("select count(*), coalesce(sum(attempts), 0) from relevo_held_key") == [(0, 0)]


@asynccontextmanager
async def scene(loop: SimulatedLoop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    store = sqlite_store(folder / "app.db")
    wire = Wire(loop=loop)
    settings = Settings(
        database=store.settings, relay=RelaySettings(lease_s=LEASE_S, batch_max=BATCH, poll_min_s=0.05, poll_max_s=2.0)
    )
    database = Flaky(store.settings)
    monkeypatch.setattr(service, "database_for", lambda *_, **__: database)
    monkeypatch.setattr(service, "broker_for", lambda *_: WireBroker(wire))
    async with Relay(settings, name="simulated", clock=loop.clock) as relay:
        yield Scene(loop, store, wire, database, relay)


def test_half_an_hour_without_one_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAILURES rows 16, 17: one topic is away for 1,800 s and another one goes on. Nothing is parked or counted, the
    leases are kept, probes stay few, readiness says since when; then it drains in order, the lost batch sent again."""

    async def play(loop: SimulatedLoop) -> None:
        async with scene(loop, tmp_path, monkeypatch) as now:
            for topic in TOPICS:
                now.write(topic, 150)
                await now.until_out(topic)
            wire, probed_before = now.wire, len(now.wire.probed)
            wire.away.add("shop.order")
            wire.swallow.add("shop.order")
            now.write("shop.order", 3 * BATCH)
            away_at = loop.time()
            await asyncio.sleep(1.0)
            since = now.relay.health().problems["destination shop.order"]
            assert f"since {loop.wall().replace(microsecond=0):%Y-%m-%dT%H:%M}" in since
            held_lanes = now.relay.engine and dict(now.relay.engine.ownership.lanes)
            for _ in range(int(AWAY_S / 60)):
                await asyncio.sleep(60 - loop.time() % 60)
                now.write("shop.order", 10)
                now.write("shop.note", 10)
                assert await now.until_out("shop.note") < 3.0
                health = now.relay.health()
                assert not health.ready and health.live
                assert health.problems == {"destination shop.order": since}
                assert now.leased_s() > LEASE_S / 2
            assert now.relay.engine is not None and now.relay.engine.ownership.lanes == held_lanes
            assert now.store.query("select topic from relevo_destination") == [("shop.order",)]
            assert now.unsettled("shop.order") == now.written["shop.order"] - 150
            elapsed = loop.time() - away_at
            probes = wire.probed[probed_before:]
            gaps = [later - earlier for earlier, later in pairwise(probes)][10:]
            assert elapsed / PROBE_S[1] * 0.99 < len(probes) < elapsed / PROBE_S[0]
            assert PROBE_S[0] <= min(gaps) < 1.2 * PROBE_S[0] and 0.9 * PROBE_S[1] < max(gaps) <= PROBE_S[1] + 1e-6, (
                "jitter"
            )

            wire.away.clear()
            back_at, known = loop.time(), len(wire.log)
            await now.until_out("shop.order")
            assert wire.times[known] - back_at <= PROBE_S[1] + 0.1, "the first event, one probe interval later at most"
            assert now.relay.health().ready
            await asyncio.sleep(2.5)
            assert now.store.query("select topic from relevo_destination") == []
            now.check_books("shop.order", doubles_max=BATCH)
            now.check_books("shop.note", doubles_max=0)
            assert len(wire.seen("shop.order")) > now.written["shop.order"], "the lost batch was there twice"

    simulate(monkeypatch, play)


def test_five_minutes_without_the_broker_and_many_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAILURES row 16: with 40 topics away the broker is asked as if there were eight, and all come back together."""
    topics = [f"shop.t{number}" for number in range(40)]

    async def play(loop: SimulatedLoop) -> None:
        async with scene(loop, tmp_path, monkeypatch) as now:
            now.wire.away.update(topics)
            for topic in topics:
                now.write(topic, 10)
            await asyncio.sleep(300)
            assert len(now.relay.health().problems) == len(topics)
            assert len(now.wire.probed) < 8 * 300 / PROBE_S[0]
            now.wire.away.clear()
            back_at = loop.time()
            for topic in topics:
                await now.until_out(topic)
            assert loop.time() - back_at < PROBE_S[1] + 1.0
            for topic in topics:
                now.check_books(topic, doubles_max=0)

    simulate(monkeypatch, play)


def test_a_destination_that_answers_and_refuses_is_tried_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAILURES row 16: probes succeed and messages do not (a full queue): each try may store some of a batch, so they
    become rare; readiness keeps saying since when."""

    async def play(loop: SimulatedLoop) -> None:
        async with scene(loop, tmp_path, monkeypatch) as now:

            async def answers(topic: str) -> PublishOutcome:
                return Accepted()

            now.wire.away.add("shop.order")
            monkeypatch.setattr(now.wire, "probe", answers)
            refusals: list[float] = []
            publish = now.wire.publish

            async def counted(messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
                refusals.append(loop.time())
                return await publish(messages)

            monkeypatch.setattr(now.wire, "publish", counted)
            now.write("shop.order", 30)
            await asyncio.sleep(600)
            assert 600 / 5 * 0.9 < len(refusals) < 600 / 2.5 + 20
            now.wire.away.clear()
            await now.until_out("shop.order")
            now.check_books("shop.order", doubles_max=0)

    simulate(monkeypatch, play)


def test_half_an_hour_without_the_database_for_the_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAILURES row 18: the database is away for 1,800 s: the leases run out, nothing ends, readiness says so and since
    when; when it is back the relay takes its lanes again and goes on."""

    async def play(loop: SimulatedLoop) -> None:
        async with scene(loop, tmp_path, monkeypatch) as now:
            now.write("shop.order", 150)
            await now.until_out("shop.order")
            now.write("shop.order", 150)
            now.database.away = True
            await asyncio.sleep(1.0)
            problems = now.relay.health().problems
            assert "since 2026-01-01T00:0" in problems["database"]
            for _ in range(30):
                await asyncio.sleep(60)
                assert now.relay.health().problems == problems
            assert 2 * AWAY_S / PROBE_S[1] * 0.95 < now.database.asked < 5 * AWAY_S / PROBE_S[0]
            assert now.leased_s() < 0
            now.database.away = False
            assert await now.until_out("shop.order") < 2 * PROBE_S[1] + 0.5
            assert now.relay.health().ready
            now.check_books("shop.order", doubles_max=BATCH)

    simulate(monkeypatch, play)


@asynccontextmanager
async def consuming(
    loop: SimulatedLoop, folder: Path, broker: FakeBroker
) -> AsyncIterator[tuple[ConsumerRunner, Store, Flaky]]:
    store = sqlite_store(folder / "app.db")
    make_effects(store)
    consumer = Consumer("books", ["shop.order"], retry=FAST)

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)

    database = Flaky(store.settings)
    settings = Settings(database=store.settings, consumer=ConsumerSettings(lease_s=LEASE_S))
    runner = ConsumerRunner(consumer, settings, broker=broker, database=database)
    ready = asyncio.Event()
    task = asyncio.create_task(runner.run(on_ready=ready.set))
    await ready.wait()
    try:
        yield runner, store, database
    finally:
        runner.stop()
        await task
        await database.aclose()


async def until(loop: SimulatedLoop, broker: FakeBroker) -> float:
    began = loop.time()
    async with asyncio.timeout(30):
        while not broker.all_settled():
            await asyncio.sleep(0.01)
    return loop.time() - began


@pytest.mark.parametrize("away", ["broker", "database"])
def test_half_an_hour_without_the_broker_or_the_database_for_a_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """FAILURES rows 16, 18: a consumer waits 1,800 s for the broker, or for the database, says since when, counts
    nothing, and goes on within a probe's interval."""

    async def play(loop: SimulatedLoop) -> None:
        broker = FakeBroker()
        async with consuming(loop, tmp_path, broker) as (runner, store, database):
            broker.append(*[order(number) for number in range(20)])
            await until(loop, broker)
            if away == "broker":
                broker.down = True
            else:
                database.away = True
                broker.append(*[order(number) for number in range(20, 40)])
            await asyncio.sleep(10.0)
            health = runner.health()
            assert not health.ready and "(since 20" in health.problems[f"books/{away}"]
            for _ in range(int(AWAY_S / 60)):
                await asyncio.sleep(60)
                assert runner.health().problems == health.problems
            if away == "broker":
                alive = store.query("select expires_at / 1000.0 from relevo_process where role = 'consumer'")
                assert float(alive[0][0]) > loop.wall().timestamp()
                broker.down = False
                broker.append(*[order(number) for number in range(20, 40)])
            else:
                assert AWAY_S / PROBE_S[1] * 0.95 < database.asked < 3 * AWAY_S / PROBE_S[0]
                database.away = False
            assert await until(loop, broker) < 2 * PROBE_S[1] + 0.5
            assert runner.health().ready
            assert [row[0] for row in store.query("select number from effect order by effect_seq")] == list(range(40))
            assert store.query("select count(*) from relevo_held_key") == [(0,)]
            assert store.query("select coalesce(max(attempts), 0) from relevo_journal") == [(0,)]

    simulate(monkeypatch, play)
