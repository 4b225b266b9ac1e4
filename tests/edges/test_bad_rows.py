"""One row that cannot be read, in any batch of Relevo's own tables, is set aside with its reason; the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from relevo import Consumer, Event
from relevo.cli.main import cli
from relevo.clients import database_for
from relevo.effects import EffectRequest, Registry, Unknown, effect
from relevo.message import Message
from relevo.ops import effects as ops
from relevo.outcome import PublishOutcome
from relevo.storage import holding, lettering
from relevo.storage.holding import Why, key_id
from tests.support.consumers import FAST, held, insert, make_effects, running
from tests.support.consumers import effects as handled
from tests.support.consumers import order as placed
from tests.support.effects import performing, record, states
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.letters import SaysBroker, billing, order
from tests.support.relays import FakePublisher, Store, sqlite_store
from tests.support.waiting import eventually

PLACES = {"first": 0, "middle": 2, "last": 4}
MANY = "9" * 5_000
"""A number that JSON may hold, and that Python does not read."""


@pytest.mark.parametrize("place", PLACES)
async def test_a_dead_letter_that_cannot_be_read(store: Store, place: str, caplog: pytest.LogCaptureFixture) -> None:
    says = FakePublisher()
    name = new_name()
    await letters(store, name, 5)
    store.do(f"update relevo_dead_letter set headers = '[1]' where key = {key(store, PLACES[place])}")
    async with running(billing(name, "shop", set(), dead_letters=True), store, SaysBroker(says=says)) as it:
        await eventually(lambda: len(says.log) == 4, what="the others go out")
        await eventually(lambda: refused(store), what="its reason is written down")
        await eventually(lambda: it.runner.health().detail[name]["dead_letters"]["waiting"] == 1, what="it is counted")
    ((refusals, reason),) = store.query("select refusals, problem from relevo_dead_letter")
    assert refusals == 1 and "cannot be read" in reason and "the broker refused" not in reason
    assert "is tried again" in caplog.text and "cannot be read" in caplog.text


@pytest.mark.parametrize("place", PLACES)
async def test_a_dead_letter_the_publisher_fails_at(store: Store, place: str, caplog: pytest.LogCaptureFixture) -> None:
    def answer(message: Message) -> PublishOutcome | None:
        if message.key == f"k{PLACES[place]}".encode():
            raise TypeError("not a text")
        return None

    says = FakePublisher(answer)
    name = new_name()
    await letters(store, name, 5)
    async with running(billing(name, "shop", set(), dead_letters=True), store, SaysBroker(says=says)):
        await eventually(lambda: refused(store), what="its reason is written down")
    assert {message.key for message in says.log} >= {f"k{n}".encode() for n in range(5) if n != PLACES[place]}
    ((letter, reason),) = store.query("select key, problem from relevo_dead_letter")
    assert bytes(letter) == f"k{PLACES[place]}".encode() and "not a text" in reason


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("place", PLACES)
async def test_a_held_row_that_cannot_be_read(
    store: Store, place: str, skip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its key is parked, whatever the policy says about rejected messages, and no dead letter is made of it."""
    make_effects(store)
    name = new_name()
    database = database_for(store.settings)
    for number in range(5):
        message = order("shop", number, f"k{number}")
        hold = holding.hold(
            key_id("consumer", name, message),
            *(message, "s", number),
            state="waiting",
            why=Why("w"),
            attempts=1,
            delay_s=0.0,  # type: ignore[arg-type]
        )
        await database.run(hold)
    await database.aclose()
    store.do(f"update relevo_held_message set headers = '[1]' where key = {key(store, PLACES[place])}")
    policy: dict[str, Any] = {"on_rejected": "skip"} if skip else {}
    consumer = billing(name, "shop", set(), dead_letters=True, **policy)
    async with running(consumer, store, FakeBroker()):
        await eventually(lambda: [row[0] for row in held(store)] == ["parked"], what="the bad one is parked")
        await eventually(lambda: len(handled(store)) == 4, what="the others are handled")
    ((state, reason, *_),) = held(store)
    assert state == "parked" and "cannot be read" in reason
    assert store.query("select count(*) from relevo_dead_letter") == [(0,)]
    assert "is parked" in caplog.text and "cannot be read" in caplog.text


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("place", PLACES)
async def test_an_effect_that_cannot_be_read(
    store: Store, place: str, asked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It failed, or stays unknown if it was sent before; ``relevo effects show`` shows it; the others are performed."""
    caplog.set_level(logging.INFO)
    seen: list[str] = []

    async def verify(request: EffectRequest) -> Unknown:
        return Unknown("not yet")

    @effect(new_name(), registry=Registry(), verify=verify)
    async def charge(request: EffectRequest) -> None:
        seen.append(request.key)

    for number in range(5):
        record(store, charge, f"k{number}", {"n": number})
    bad = f"k{PLACES[place]}"
    state = "unknown" if asked else "pending"
    store.do(f"update relevo_effect set data = '{MANY}', state = '{state}' where key = '{bad}'")
    async with performing([charge], store):
        await eventually(lambda: list(states(store).values()).count("done") == 4, what="the others are performed")
        await eventually(lambda: settled(store, bad), what="the bad one is set aside")
    assert bad not in seen and len(seen) == 4
    assert states(store)[bad] == ("unknown" if asked else "failed")
    ((effect_id, error),) = store.query(f"select effect_id, error from relevo_effect where key = '{bad}'")
    assert "cannot be read" in error and "cannot be read" in caplog.text
    database = database_for(store.settings)
    try:
        assert "cannot be read" in (await ops.show(database, effect_id)).data
    finally:
        await database.aclose()


@contextlib.contextmanager
def by_hand(store: Store) -> Iterator[Any]:
    """A connection without checks, committed at the end."""
    with contextlib.closing(store.connect()) as connection:
        connection.execute("pragma ignore_check_constraints = on")
        yield connection
        connection.commit()


ODD_EFFECTS = [
    ("state", "'finished'"),
    ("due_at", "'soon'"),
    ("due_at", "9223372036854775807"),
    ("expires_at", "'never'"),
    ("epoch", "'one'"),
    ("attempts", "'many'"),
    ("attempts", "x'01'"),
    ("asked", "'often'"),
    ("holder", "x'ff'"),
    ("data", "x'ff'"),
    ("data", "'{'"),
    ("data", "cast(x'22ff22' as text)"),
    ("result", "'{'"),
    ("event_id", "'not a uuid'"),
    ("event_id", "x'ff'"),
    ("consumer", "x'ff'"),
    ("error", "x'ff'"),
    ("idempotency_key", "'not a uuid'"),
    ("idempotency_key", "x'ff'"),
    ("created_at", "'soon'"),
    ("sent_at", "'soon'"),
    ("key", "x'ff'"),
    ("key", "cast(x'ff' as text)"),
    ("name", "x'ff'"),
]


@pytest.mark.parametrize("state", ["pending", "sent", "unknown", "failed"])
async def test_effects_edited_by_hand_spoil_themselves_only(tmp_path: Path, state: str) -> None:
    """SQLite keeps any value in any column. The others are performed, and the commands show all there is."""
    store = sqlite_store(tmp_path / "app.db")
    seen: set[str] = set()
    name = new_name()

    async def verify(request: EffectRequest) -> bool:
        return True

    @effect(name, registry=Registry(), verify=verify)
    async def charge(request: EffectRequest) -> None:
        seen.add(request.key)

    for number in range(len(ODD_EFFECTS)):
        record(store, charge, f"good{number}", {"n": number})
        record(store, charge, f"odd{number}", {"n": number})
    with by_hand(store) as connection:
        for number, (column, value) in enumerate(ODD_EFFECTS):
            odd = f"where key = 'odd{number}'"
            connection.execute(f"update relevo_effect set state = '{state}', attempts = 1, sent_at = 1 {odd}")
            connection.execute(f"update relevo_effect set {column} = {value} {odd}")
    async with performing([charge], store):
        good = "select count(*) from relevo_effect where typeof(key) = 'text' and key like 'good%' and state = 'done'"
        await eventually(lambda: store.query(good) == [(len(ODD_EFFECTS),)], what="the good ones are performed")
    assert seen >= {f"good{number}" for number in range(len(ODD_EFFECTS))}
    environment = {"RELEVO_DATABASE_URL": store.url}
    ids = [str(row[0]) for row in store.query("select effect_id from relevo_effect")]
    for command in (["status"], ["effects", "list"], *(["effects", "show", effect_id] for effect_id in ids)):
        result = await asyncio.to_thread(CliRunner(env=environment).invoke, cli, command)
        assert result.exit_code in (0, 1) and isinstance(result.exception, SystemExit | None), (command, result.output)


@pytest.mark.parametrize("by", ["an operator", "its handler"])
async def test_inbox_rows_that_are_deleted_while_messages_are_queued(store: Store, by: str) -> None:
    """The queue goes on, in order, each message once: what it has handled is no longer in it."""
    make_effects(store)
    name = new_name()
    consumer = Consumer(name, ["shop.order"], retry=FAST, inline_retry_s=0.0)
    delete = "delete from relevo_inbox"
    seen: list[int] = []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        number = event.data.order_id
        insert(tx, number)
        if by == "its handler":
            tx.execute(delete)
        if number == 0 and event.attempt < 3:
            raise ValueError("so that the others queue up")
        seen.append(number)

    broker = FakeBroker()
    broker.append(*(placed(number) for number in range(4)))
    async with running(consumer, store, broker):
        await eventually(lambda: len(held(store)) == 1 or seen, what="the key is held")
        if by == "an operator":
            store.do(delete)
        await eventually(lambda: len(seen) == 4, what="all are handled")
        await eventually(lambda: held(store) == [], what="the key is live again")
        broker.append(placed(9))
        await eventually(lambda: 9 in seen, what="and goes on")
    assert seen == [0, 1, 2, 3, 9] and handled(store) == seen


def new_name() -> str:
    """One that no other test has: lines of the log are counted by it."""
    return f"billing-{secrets.token_hex(4)}"


def settled(store: Store, name: str) -> bool:
    return bool(store.query(f"select 1 from relevo_effect where key = '{name}' and error_type = 'Unreadable'"))


def refused(store: Store) -> bool:
    return (
        store.query("select count(*) from relevo_dead_letter where refusals > 0")
        == [(1,)]
        == store.query("select count(*) from relevo_dead_letter")
    )


def key(store: Store, number: int) -> str:
    text = f"k{number}".encode().hex()
    return f"'\\x{text}'" if store.is_postgres else f"x'{text}'"


async def letters(store: Store, name: str, count: int) -> None:
    database = database_for(store.settings)
    for number in range(count):
        await database.run(lettering.add(name, order("shop.dlq", number, f"k{number}")))
    await database.aclose()
