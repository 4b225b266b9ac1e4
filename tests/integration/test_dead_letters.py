"""Consumers that write dead letters: a copy of what is given up, published by itself after it was held."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relevo.clients import database_for
from relevo.consumer import ConsumerRunner
from relevo.consumer.letters import BATCH
from relevo.message import Message
from relevo.ops import parked_back, pauses
from relevo.ops.parked import Operator
from relevo.ops.status import status
from relevo.outcome import PublishOutcome, Rejected, Unavailable
from relevo.runtime.dead_letters import READER, dlq_topic, reader_of
from relevo.settings import NamedConsumerSettings
from relevo.storage import lettering
from tests.support.consumers import effects, held, inbox, make_effects, queue, running, settings_for
from tests.support.letters import SaysBroker, billing, names, order, publish, read, real
from tests.support.relays import FakePublisher, Store, postgres_store, sqlite_store
from tests.support.schema import create_schema
from tests.support.waiting import eventually

PATIENCE_S = 60.0


@pytest.fixture(params=["sqlite-embedded", "postgresql-kafka", "postgresql-rabbitmq", "postgresql-alone"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, str]:
    if request.param == "sqlite-embedded":
        store, url = sqlite_store(tmp_path / "app.db"), f"embedded:{tmp_path / 'broker.db'}"
    else:
        broker_url = {"kafka": "kafka_url", "rabbitmq": "rabbitmq_url", "alone": "pg_database"}[
            request.param.partition("-")[2]
        ]
        database = request.getfixturevalue("pg_database")
        create_schema(database, source="log")
        store, url = Store(database), request.getfixturevalue(broker_url)
    make_effects(store)
    return store, url


def parked(store: Store, consumer: str) -> int:
    query = f"select count(*) from relevo_held_key where consumer = '{consumer}' and state = 'parked'"
    return int(store.query(query)[0][0])


def waiting(store: Store) -> int:
    return int(store.query("select count(*) from relevo_dead_letter")[0][0])


async def test_a_copy_goes_to_the_dead_letters_and_the_key_stays_parked(place: tuple[Store, str]) -> None:
    """FAILURES row 22: the message that was given up, and not what waits behind it, is published to its dead-letter
    topic byte for byte with the causes beside; its key stays parked. Brought back, the copy redrives the key:
    everything is done once and in order."""
    store, url = place
    broker = real(url)
    name, topic = names()
    letters = dlq_topic(name, topic)
    await broker.ensure_topics([topic])
    messages = [order(topic, 1, "a"), order(topic, 2, "a"), order(topic, 3, "b")]
    async with running(billing(name, topic, {1}, dead_letters=True), store, broker):
        await publish(broker, messages)
        await eventually(lambda: queue(store) == [1, 2] and effects(store) == [3], what="parked", timeout_s=PATIENCE_S)
        await eventually(lambda: waiting(store) == 0, what="the letter is published", timeout_s=PATIENCE_S)
    ((state, reason, _, attempts),) = held(store)
    assert (state, attempts) == ("parked", 1) and reason.endswith("no price for 1")

    if broker.capabilities.keeps_history:
        (letter,) = await read(broker, letters, f"{name}-reader", 1)
        assert (letter.event_id, letter.payload, letter.key) == (messages[0].event_id, messages[0].payload, b"a")
        assert letter.headers["shop"] == "north" and letter.headers["relevo-original-topic"] == topic
        assert "no price for 1" in letter.headers["relevo-cause"] and letter.headers["relevo-attempts"] == "1"

    returned = await bring_back(store, url, letters)
    assert (returned.queued, returned.redriven, returned.known) == (0, 1, 0)
    async with running(billing(name, topic, set()), store, broker):
        await eventually(lambda: effects(store) == [3, 1, 2], what="done in order", timeout_s=PATIENCE_S)
        await eventually(lambda: held(store) == [], what="the key is live", timeout_s=PATIENCE_S)
    assert set(inbox(store).values()) == {"done"}


async def bring_back(store: Store, url: str, letters: str) -> parked_back.Returned:
    database = database_for(store.settings)
    subscription = await real(url).subscribe(reader_of(letters, real(url)), [letters])
    try:
        found = await parked_back.waiting(subscription, wait_s=PATIENCE_S)
        assert found.elsewhere == 0
        more = found.messages + 1  # so that it looks behind the last one
        return await parked_back.bring_back(database, subscription, Operator("ann"), most=more, wait_s=PATIENCE_S)
    finally:
        await subscription.aclose()
        await database.aclose()


async def test_letters_of_one_topic_leave_those_of_another(place: tuple[Store, str]) -> None:
    """Each dead-letter topic is read by itself: bringing back one passes nothing of the others. What fails again while
    it is brought back is a new letter, of which no more are taken than were asked for."""
    store, url = place
    broker = real(url)
    places = [names(), names()]
    await broker.ensure_topics([topic for _, topic in places])
    for name, topic in places:
        async with running(billing(name, topic, {1, 2}, dead_letters=True), store, broker):
            await publish(broker, [order(topic, 1, "a"), order(topic, 2, "b")])
            await eventually(lambda name=name: parked(store, name) == 2, what="parked", timeout_s=PATIENCE_S)
            await eventually(lambda: waiting(store) == 0, what="the letters are published", timeout_s=PATIENCE_S)
    for name, topic in places:
        returned = await bring_back(store, url, dlq_topic(name, topic))
        assert (returned.redriven, returned.left) == (2, parked_back.EMPTY)
    name, topic = places[0]
    async with running(billing(name, topic, {1}, dead_letters=True), store, broker):
        await eventually(lambda: effects(store) == [2], what="one is done", timeout_s=PATIENCE_S)
        await eventually(lambda: parked(store, name) == 1, what="the other fails again", timeout_s=PATIENCE_S)
        await eventually(lambda: waiting(store) == 0, what="its letter is published", timeout_s=PATIENCE_S)
        again = await bring_back(store, url, dlq_topic(name, topic))
    assert 1 <= again.redriven <= 2  # not without end: as many as it was to bring back


async def test_letters_that_another_reader_has_are_not_said_to_be_none(place: tuple[Store, str]) -> None:
    """While a second reader has some of the shards, what the first finds is not called everything: it says how many
    shards it could not look into, and the next run brings the rest. Nothing comes twice."""
    store, url = place
    broker = real(url)
    name, topic = names()
    letters = dlq_topic(name, topic)
    await broker.ensure_topics([topic, letters])
    numbers = range(1, 25)
    async with running(billing(name, topic, set(numbers), dead_letters=True), store, broker):
        await publish(broker, [order(topic, number, f"k{number}") for number in numbers])
        await eventually(lambda: len(held(store)) == 24, what="parked", timeout_s=PATIENCE_S)
        await eventually(lambda: waiting(store) == 0, what="the letters are published", timeout_s=PATIENCE_S)
    database = database_for(store.settings)
    other = await broker.subscribe(reader_of(letters, broker), [letters])
    first = await broker.subscribe(reader_of(letters, broker), [letters])
    try:
        # Each takes, as who does not poll is not a member for all brokers; what it took it gives back.
        async def both_have_some() -> bool:
            for reader in (first, other):
                await reader.hand_back(await reader.take(1, 0.1))
            return bool(await first.lag()) and bool(await other.lag())

        await eventually(both_have_some, what="they share", timeout_s=PATIENCE_S)
        theirs = await other.lag()
        found = await parked_back.waiting(first, wait_s=0.5)
        assert found == parked_back.Waiting(24 - sum(theirs.values()), len(theirs))
        done = await parked_back.bring_back(database, first, Operator("ann"), most=found.messages, wait_s=PATIENCE_S)
        assert (done.redriven, done.left) == (found.messages, parked_back.Waiting(0, len(theirs)))
        nothing = await parked_back.bring_back(database, first, Operator("ann"), most=1, wait_s=1.0)
        assert nothing == parked_back.Returned(left=parked_back.Waiting(0, len(theirs)))
        await other.aclose()
        rest = await parked_back.bring_back(database, first, Operator("ann"), most=100, wait_s=PATIENCE_S)
        assert (rest.redriven, rest.known, rest.left) == (sum(theirs.values()), 0, parked_back.EMPTY)
    finally:
        await first.aclose()
        await other.aclose()
        await database.aclose()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    sqlite = request.param == "sqlite"
    found = sqlite_store(tmp_path / "app.db") if sqlite else postgres_store(request.getfixturevalue("pg_database"))
    make_effects(found)
    return found


async def test_an_outage_of_the_broker_keeps_the_letter_and_nothing_waits_for_it(store: Store) -> None:
    """FAILURES row 16: the dead-letter topic is unavailable. The key is parked and the others flow; the letter waits,
    the problem is told, and it goes out once by itself when the topic is back."""
    away = True

    def answer(message: Message) -> PublishOutcome | None:
        return Unavailable("the topic is away") if away else None

    says = FakePublisher(answer)
    broker = SaysBroker(says=says)
    broker.append(order("shop", 1, "a"), order("shop", 2, "b"))
    async with running(billing("billing", "shop", {1}, dead_letters=True), store, broker) as it:
        await eventually(lambda: effects(store) == [2] and held(store), what="parked, the other is done")
        await eventually(
            lambda: "the topic is away" in str(it.runner.health().detail["billing"]["dead_letters"]["problem"]),
            what="the problem is told",
        )
        assert it.runner.health().ready and waiting(store) == 1 and says.log == []
        away = False
        await eventually(lambda: waiting(store) == 0, what="it is published by itself", timeout_s=PATIENCE_S)
        await eventually(
            lambda: it.runner.health().detail["billing"]["dead_letters"]["problem"] is None, what="the problem is over"
        )
    assert [message.topic for message in says.log] == ["billing.shop.dlq"] and broker.ensured == ["billing.shop.dlq"]
    assert held(store)[0][0] == "parked"


async def test_a_letter_that_is_refused_keeps_no_other_back(store: Store) -> None:
    """The broker refuses one letter (too large): it waits aside with what was said, the next one goes out."""

    def answer(message: Message) -> PublishOutcome | None:
        return Rejected("too_large", "too large") if message.key == b"a" else None

    says = FakePublisher(answer)
    broker = SaysBroker(says=says)
    broker.append(order("shop", 1, "a"), order("shop", 2, "b"))
    async with running(billing("billing", "shop", {1, 2}, dead_letters=True), store, broker):
        await eventually(lambda: [message.key for message in says.log] == [b"b"], what="the other goes out")
        await eventually(
            lambda: [bool(row[0]) for row in store.query("select refusals from relevo_dead_letter")] == [True],
            what="the refused one waits",
        )
    ((problem,),) = store.query("select problem from relevo_dead_letter")
    assert problem == "the broker refused it (too_large: too large)"
    assert len(held(store)) == 2
    database = database_for(store.settings)
    report = await status(database, settings_for(store))
    await database.aclose()
    (line,) = report.dead_letters
    assert (line.consumer, line.count, line.refused, line.problem) == ("billing", 1, 1, problem)
    assert any("1 dead letter is not published after" in warning for warning in report.warnings)


async def test_a_topic_that_is_away_keeps_no_other_back(store: Store) -> None:
    """A dead-letter topic takes nothing (its queue is full) and more letters wait for it than one turn reads: those of
    another topic go out, and its own when it takes them again."""
    away = True

    def answer(message: Message) -> PublishOutcome | None:
        return Unavailable("full") if away and message.topic == "full.dlq" else None

    says = FakePublisher(answer)
    broker = SaysBroker(says=says)
    database = database_for(store.settings)
    for number in range(BATCH + 1):
        letter = order("full.dlq" if number < BATCH else "other.dlq", number, f"k{number}")
        await database.run(lettering.add("billing", letter))
    await database.aclose()
    async with running(billing("billing", "shop", set(), dead_letters=True), store, broker) as it:
        await eventually(lambda: [message.topic for message in says.log] == ["other.dlq"], what="the other goes out")
        assert "full" in str(it.runner.health().detail["billing"]["dead_letters"]["problem"])
        away = False
        await eventually(lambda: waiting(store) == 0, what="all are published", timeout_s=PATIENCE_S)
        await eventually(
            lambda: it.runner.health().detail["billing"]["dead_letters"]["problem"] is None, what="no problem is left"
        )
    assert len(says.log) == BATCH + 1


async def test_what_a_policy_skips_is_a_dead_letter_too(store: Store) -> None:
    """``on_rejected="skip"``: the key goes on, and the letter is all that is left; it can be brought back."""
    says = FakePublisher()
    broker = SaysBroker(says=says)
    messages = [order("shop", 1, "a"), order("shop", 2, "a")]
    broker.append(*messages)
    async with running(billing("billing", "shop", {1}, dead_letters=True, on_rejected="skip"), store, broker):
        await eventually(lambda: effects(store) == [2] and len(says.log) == 1, what="skipped, and a letter")
    assert inbox(store)[messages[0].event_id] == "skipped" and held(store) == []
    back = SaysBroker()
    back.append(*says.log)
    database = database_for(store.settings)
    reader = await back.subscribe(READER, [])
    returned = await parked_back.bring_back(database, reader, Operator("ann"), most=1, wait_s=5.0)
    await database.aclose()
    assert returned.queued == 1
    async with running(billing("billing", "shop", set()), store, SaysBroker()):
        await eventually(lambda: effects(store) == [2, 1], what="done after all")


@pytest.mark.parametrize(("said", "code", "letters"), [(True, False, 1), (False, True, 0)])
async def test_settings_go_before_the_code(tmp_path: Path, said: bool, code: bool, letters: int) -> None:
    """``[consumers."billing"] dead_letters``: on for code that says nothing, off for code that says yes."""
    store = sqlite_store(tmp_path / "app.db")
    make_effects(store)
    says = FakePublisher()
    broker = SaysBroker(says=says)
    broker.append(order("shop", 1, "a"))
    settings = settings_for(store)
    settings.consumers["billing"] = NamedConsumerSettings(dead_letters=said)
    runner = ConsumerRunner(billing("billing", "shop", {1}, dead_letters=code), settings, broker=broker)
    task = asyncio.create_task(runner.run())
    try:
        out = lambda: broker.all_settled() and len(says.log) == letters and waiting(store) == 0  # noqa: E731
        await eventually(out, what="parked", timeout_s=PATIENCE_S)
        assert len(held(store)) == 1
    finally:
        runner.stop()
        await task


async def test_two_processes_publish_a_letter_once(store: Store) -> None:
    """Under one lease: whoever has it publishes what both wrote, each once; when it goes, the other goes on."""
    says = FakePublisher()
    broker = SaysBroker(says=says)
    name = "billing"
    bad = set(range(40))
    async with running(billing(name, "shop", bad, dead_letters=True), store, broker):
        async with running(billing(name, "shop", bad, dead_letters=True), store, broker):
            broker.append(*(order("shop", number, f"k{number}") for number in range(20)))
            await eventually(lambda: len(says.log) == 20 and waiting(store) == 0, what="all are out")
    async with running(billing(name, "shop", bad, dead_letters=True), store, broker):
        broker.append(*(order("shop", number, f"k{number}") for number in range(20, 40)))
        await eventually(lambda: len(says.log) == 40 and waiting(store) == 0, what="all are out")
    assert len({message.event_id for message in says.log}) == 40


async def test_a_paused_destination_gets_no_letter(store: Store) -> None:
    """Somebody paused the dead-letter topic: the key is parked and nothing is sent, until it is resumed."""
    says = FakePublisher()
    broker = SaysBroker(says=says)
    broker.append(order("shop", 1, "a"))
    database = database_for(store.settings)
    letters = pauses.target("destination", "billing.shop.dlq")
    assert await pauses.change(database, letters, act="pause", who="ann", why="cleaning up there")
    async with running(billing("billing", "shop", {1}, dead_letters=True), store, broker):
        await eventually(
            lambda: store.query("select 1 from relevo_duty where name = 'dead letters of billing'"), what="it looked"
        )
        assert waiting(store) == 1 and says.log == []
        assert await pauses.change(database, letters, act="resume", who="ann", why="")
        await eventually(lambda: len(says.log) == 1 and waiting(store) == 0, what="it is sent", timeout_s=PATIENCE_S)
    await database.aclose()


async def test_a_clean_stop_waits_for_the_letter_under_way_and_gives_the_lease_back(store: Store) -> None:
    """The broker confirms while the consumer stops: the letter is removed, nothing of it comes again, and the next
    process need not wait for a lease."""
    says = FakePublisher(gate=asyncio.Event())
    broker = SaysBroker(says=says)
    broker.append(order("shop", 1, "a"))
    async with running(billing("billing", "shop", {1}, dead_letters=True), store, broker) as it:
        await eventually(lambda: says.calls == 1, what="the letter is with the broker")
        it.runner.stop()
        assert says.gate is not None
        says.gate.set()
    assert waiting(store) == 0 and len(says.log) == 1
    assert store.query("select holder from relevo_duty") == [(None,)]
