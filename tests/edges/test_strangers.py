"""A corpus of what other producers send, to every broker, in every way a message comes to a consumer.

Each record says in ``tests/support/strangers/corpus.py`` what becomes of it. The process goes on, the neighbours are
handled, and views, listings and commands show every message that is held.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from click.testing import CliRunner

from relevo import Consumer, Event, event
from relevo.brokers import ADAPTERS, broker_for
from relevo.cli.main import cli
from relevo.cli.parked.view import KeyWithQueue, key_view, message_view
from relevo.clients import database_for
from relevo.consumer import ConsumerRunner
from relevo.message import Message
from relevo.ops import parked, parked_back, parked_dlq
from relevo.ops.parked import Operator
from relevo.ops.replay import Replays
from relevo.ops.replay_sources import Selection as Replayed
from relevo.ports.broker import Broker
from relevo.ports.history import KeepsHistory
from relevo.runtime.dead_letters import dlq_topic, reader_of
from relevo.settings import BrokerSettings, ConsumerSettings, Settings
from relevo.storage.parking import Selection
from tests.support.log_stores import log_store
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.strangers import amqp, kafka, rows
from tests.support.strangers.corpus import DUPLICATE, HANDLED, MALFORMED, PARKED, Record, all_of
from tests.support.waiting import eventually

PATIENCE_S = 90.0
EVERYTHING = Selection()
MANY = 100_000
TOO_LONG = ("type-long", "content-3-parked")
"""For AMQP, which has 255 bytes for a type and a content type: they stay parked, with words."""
BEFORE = datetime(1970, 1, 1, tzinfo=UTC)
BROKERS = ("embedded", "kafka", "rabbitmq", "postgres")


@event("odd.typed", topic="odd")
@dataclass(frozen=True)
class Typed:
    n: str


@dataclass
class Place:
    """A broker with the corpus in a topic of this test's own, a database, and a consumer."""

    name: str
    store: Store
    url: str
    topic: str
    options: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)
    whole: bool = False
    """Whether each held message is shown by the command, not only each ninth."""
    consumer_name: str = field(default_factory=lambda: f"strangers{secrets.token_hex(4)}")

    @property
    def broker(self) -> Broker:
        return broker_for(self.url, self.options)

    @property
    def settings(self) -> Settings:
        return Settings(
            database=self.store.settings,
            broker=BrokerSettings(url=self.url, options=self.options),
            consumer=ConsumerSettings(lease_s=5.0, threads=4),
        )

    @property
    def consumer(self) -> Consumer:
        consumer = Consumer(self.consumer_name, [self.topic])

        @consumer.on("odd.raw")
        def raw(event: Event[Message], tx: Any) -> None:
            self.handled.append(self.named(event.data) or "?")

        @consumer.on(Typed)
        def typed(event: Event[Typed], tx: Any) -> None:
            self.handled.append(event.data.n)

        return consumer

    def named(self, message: Message) -> str | None:
        """The record's name: of its header, else of its body."""
        return message.headers.get("x-name") or name_in(message.payload)

    async def send(self, topic: str) -> None:
        self.records = all_of(self.name)
        match self.name:
            case "kafka":
                servers = self.url.removeprefix("kafka://")
                await asyncio.to_thread(kafka.send_all, servers, topic, self.records)
            case "rabbitmq":
                await amqp.send_all(self.url, topic, self.records)
            case "embedded":
                path = Path(self.url.removeprefix("embedded:"))
                await asyncio.to_thread(rows.into_embedded, path, topic, self.records)
            case _:
                url = self.store.settings.url
                self.records = await asyncio.to_thread(rows.into_outbox, url, topic, self.records)
        assert len(self.records) >= 150

    async def make(self, topic: str, group: str) -> None:
        if self.name == "kafka":
            await asyncio.to_thread(kafka.make_topic, self.url.removeprefix("kafka://"), topic)
        else:
            await self.broker.ensure_topics([topic])
        if not self.broker.capabilities.keeps_history:
            await (await self.broker.subscribe(group, [topic])).aclose()


def name_in(payload: bytes | None) -> str | None:
    try:
        found = json.loads(payload or b"")
    except (ValueError, RecursionError):
        return None
    return found.get("n") if isinstance(found, dict) else None


def _broker(name: str, *, whole: bool) -> Any:
    group = pytest.mark.xdist_group(f"strangers-{name}")
    if whole:
        return pytest.param((name, True), id=f"{name}-whole", marks=[group, pytest.mark.soak])
    return pytest.param((name, False), id=name, marks=group)


@pytest.fixture(params=[_broker(name, whole=whole) for whole in (False, True) for name in BROKERS])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    name, whole = request.param
    topic = f"odd.{secrets.token_hex(4)}"
    match name:
        case "embedded":
            made = Place(name, sqlite_store(tmp_path / "app.db"), f"embedded:{tmp_path / 'broker.db'}", topic)
        case "postgres":
            url = request.getfixturevalue("pg_database")
            made = Place(name, log_store(url), url, topic)
        case _:
            store, broker = postgres_store(request.getfixturevalue("pg_database")), f"{name}_url"
            made = Place(name, store, request.getfixturevalue(broker), topic)
    made.whole = whole
    yield made


def expected(records: Iterable[Record], *fates: str) -> list[str]:
    return sorted(each.name for each in records if each.fate in fates)


async def queues(place: Place) -> list[KeyWithQueue]:
    """Every held key with its queue, as ``parked show`` builds it."""
    database = database_for(place.store.settings)
    try:
        found = []
        for key in await parked.listing(database, EVERYTHING, state=None, limit=MANY):
            selection = Selection(key.id.side, key.id.consumer, key.id.topic, key.id.key)
            shown, queue = await parked.show(database, selection, limit=MANY)
            view = KeyWithQueue(key=key_view(shown), queue=[message_view(each) for each in queue], queue_left_out=0)
            msgspec.json.encode(view)
            found.append(view)
        return found
    finally:
        await database.aclose()


def shown(place: Place, view: KeyWithQueue) -> list[tuple[str, str]]:
    """Name and error group of what one held key shows."""
    by_key = {each.key: each.name for each in place.records if each.key is not None}
    found = []
    for message in view.queue:
        name = message.headers.get("x-name") or name_in((message.payload or "").encode())
        name = name or by_key.get(view.key.key.encode(), view.key.key)
        found.append((name, view.key.error_group or ""))
    return found


def looked_at(place: Place, count: int) -> None:
    """The views and commands show all of them."""
    view = place.store.query("select * from relevo_held_readable")
    assert len(view) == count
    environment = {"RELEVO_DATABASE_URL": place.store.settings.url, "RELEVO_BROKER_URL": place.url}
    for output in ("table", "json", "jsonl"):
        ran(environment, "parked", "list", "--output", output)
    lines = ran(environment, "parked", "list", "--output", "jsonl").splitlines()
    assert len(lines) == len(place.store.query("select 1 from relevo_held_key"))
    ran(environment, "parked", "list", "--group")
    ran(environment, "status")
    ids = place.store.query("select event_id from relevo_held_message order by held_seq")
    for number, (event_id,) in enumerate(ids[:: 1 if place.whole else 9]):
        ran(environment, "parked", "show", "--id", str(event_id), "--output", ("table", "json")[number % 2])


def ran(environment: dict[str, str], *arguments: str) -> str:
    result = CliRunner(env=environment).invoke(cli, list(arguments))
    if result.exit_code not in (0, 1) or (result.exception and not isinstance(result.exception, SystemExit)):
        raise AssertionError(f"{arguments}: {result.exit_code} {result.exception!r} {result.output[-500:]}")
    return result.stdout


async def test_live(place: Place) -> None:
    """Every record has its fate, and then its message is looked at, published as a dead letter and brought back."""
    await place.make(place.topic, place.consumer_name)
    await place.send(place.topic)
    runner = ConsumerRunner(place.consumer, place.settings, broker=place.broker)
    ready = asyncio.Event()
    task = asyncio.create_task(runner.run(on_ready=ready.set))
    parked_fates = {each.fate for each in place.records} - {HANDLED, DUPLICATE, "never"}
    wanted_parked = expected(place.records, *parked_fates)
    try:
        await eventually(
            lambda: (
                task.done()
                or (
                    len(set(place.handled)) >= len(expected(place.records, HANDLED))
                    and place.store.query("select count(*) from relevo_held_message") == [(len(wanted_parked),)]
                )
            ),
            what="every record has its fate",
            timeout_s=PATIENCE_S,
        )
    except AssertionError:
        views = [each for view in await queues(place) for each in shown(place, view)]
        missing = set(expected(place.records, HANDLED)) - set(place.handled)
        strange = {each for each in views if each[0] not in wanted_parked}
        unparked = set(wanted_parked) - {name for name, _ in views}
        raise AssertionError(f"not handled: {missing}; not parked: {unparked}; parked: {strange}") from None
    finally:
        runner.stop()
        await task
    assert sorted(place.handled) == expected(place.records, HANDLED)
    fates = {each.name: each.fate for each in place.records}
    views = await queues(place)
    found = [each for view in views for each in shown(place, view)]
    assert sorted(name for name, _ in found) == wanted_parked
    wrong = {name: group for name, group in found if fates[name] not in (PARKED, group)}
    assert wrong == {}
    assert all(view.key.reason for view in views)
    await asyncio.to_thread(looked_at, place, len(wanted_parked))
    await there_and_back(place, len(wanted_parked))


async def there_and_back(place: Place, count: int) -> None:
    """All that is parked goes to the dead-letter topic, and comes back: none is lost on the way."""
    letters = dlq_topic(place.consumer_name, place.topic)
    await place.make(letters, reader_of(letters, place.broker))
    database = database_for(place.store.settings)
    publisher = await place.broker.publisher(source="urn:relevo:test")
    try:
        selection = Selection(side="consumer", consumer=place.consumer_name)
        done = await parked_dlq.publish(database, publisher, selection, Operator("ann"))
    finally:
        await publisher.aclose()
    try:
        stay = len(TOO_LONG) if place.name == "rabbitmq" else 0
        assert (done.messages, done.problem_count) == (count - stay, stay), done.problems
        assert all("cannot_be_encoded" in problem for problem in done.problems)
        assert place.store.query("select count(*) from relevo_held_message") == [(stay,)]
        count -= stay
        subscription = await place.broker.subscribe(reader_of(letters, place.broker), [letters])
        try:
            waiting = await parked_back.waiting(subscription, wait_s=20)
            assert (waiting.messages, waiting.elsewhere) == (count, 0)
            home = (place.consumer_name, place.topic)
            back = await parked_back.bring_back(
                database, subscription, Operator("ann"), most=count, wait_s=20, home=home
            )
        finally:
            await subscription.aclose()
        assert (back.queued, back.strange, back.left.messages) == (count, 0, 0)
        assert place.store.query("select count(*) from relevo_held_message") == [(count + stay,)]
    finally:
        await database.aclose()


async def test_history_and_replay(place: Place) -> None:
    """Read again from the broker: every record is delivered, and the replay runs to its end."""
    if not place.broker.capabilities.keeps_history:
        pytest.skip("this broker keeps no history")
    await place.make(place.topic, place.consumer_name)
    await place.send(place.topic)
    history = await cast(KeepsHistory, place.broker).history([place.topic])
    try:
        found = []
        while deliveries := await history.take(100):
            found.extend(deliveries)
    finally:
        await history.aclose()
    sent = [each for each in place.records if each.fate != "never"]
    assert len(found) == len(sent)
    malformed = sum(each.fate == MALFORMED and each.name != "name-malformed-parked" for each in sent)
    assert sum(delivery.malformed is not None for delivery in found) == malformed
    async with Replays(place.settings, place.consumer) as replays:
        selection = Replayed(topics=(place.topic,), source="broker", since=None, until=None, key=None)
        for key in ("type-unknown", "good-4"):
            chosen = msgspec.structs.replace(selection, key=key)
            plan = await replays.plan(chosen, "again")
            assert plan.total == 1
        everything = msgspec.structs.replace(selection, since=BEFORE)
        plan = await replays.plan(everything, "again")
        job = await replays.start(everything, plan, mode="again", why="all of it", actor="ann")
        report = await replays.run(job, asyncio.Event())
    assert report.state in ("done", "failed"), report
    early = {name for name in expected(sent, HANDLED) if name not in place.handled}
    assert all(name.startswith(("time-", "kafka-time", "embedded-time", "postgres-time")) for name in early), (
        report,
        early,
    )
    assert "good-4" in place.handled
    await asyncio.to_thread(ran_status, place)


def ran_status(place: Place) -> None:
    ran({"RELEVO_DATABASE_URL": place.store.settings.url, "RELEVO_BROKER_URL": place.url}, "status")


async def test_from_the_dead_letter_topic(place: Place) -> None:
    """Strangers write into a dead-letter topic: all of it is parked with a reason."""
    letters = dlq_topic(place.consumer_name, place.topic)
    await place.make(letters, reader_of(letters, place.broker))
    await place.send(letters)
    count = len([each for each in place.records if each.fate != "never"])
    database = database_for(place.store.settings)
    subscription = await place.broker.subscribe(reader_of(letters, place.broker), [letters])
    try:
        waiting = await parked_back.waiting(subscription, wait_s=20)
        assert waiting.elsewhere == 0
        home = (place.consumer_name, place.topic)
        back = await parked_back.bring_back(database, subscription, Operator("ann"), most=count, wait_s=20, home=home)
    finally:
        await subscription.aclose()
        await database.aclose()
    assert (back.queued, back.redriven, back.known, back.strange) == (0, 0, 0, count)
    views = await queues(place)
    assert all(view.key.reason.startswith("not a dead letter of Relevo") for view in views)
    await asyncio.to_thread(looked_at, place, sum(len(view.queue) for view in views))


def test_every_broker_has_a_corpus() -> None:
    """A broker that is added must be classified here, and each corpus is large and has every kind of fate."""
    assert {package.rpartition(".")[2] for package in ADAPTERS.values()} == set(BROKERS)
    for name in BROKERS:
        records = all_of(name)
        assert len(records) >= 150
        assert {HANDLED, MALFORMED, PARKED} <= {each.fate for each in records}
