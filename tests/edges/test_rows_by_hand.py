"""Rows of an outbox that were written by hand. SQLite keeps any bytes as text, and any value in most columns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from relevo.brokers import broker_for
from relevo.cli.main import cli
from relevo.outcome import Rejected
from relevo.testing.broker_processes import make_message
from tests.support.relays import Store, running_relay, sqlite_store
from tests.support.waiting import eventually

TEXTS = ("event_id", "topic", "type", "aggregate_type", "aggregate_id", "content_type", "headers", "kind")
NOT_UTF8 = [(column, "cast(x'78ff' as text)") for column in TEXTS if column not in ("headers", "kind")]
BYTES = [(column, "x'7879'") for column in TEXTS]
OTHERS = [
    ("headers", "'{\"a\": \"' || cast(x'ff' as text) || '\"}'"),
    ("headers", "'{\"' || cast(x'c328' as text) || '\": \"1\"}'"),
    ("type", "cast(x'6100ff' as text)"),
    ("type", "cast(x'eda080' as text)"),
    ("key", "'text'"),
    ("key", "7"),
    ("payload", "'text'"),
    ("payload", "1.5"),
    ("created_at", "'soon'"),
    ("created_at", "1.5"),
    ("created_at", "9223372036854775807"),
    ("schema_version", "'one'"),
    ("schema_version", "1.5"),
    ("schema_version", "x'01'"),
    ("schema_version", "9223372036854775807"),
    ("aggregate_version", "'many'"),
    ("aggregate_version", "1e300"),
    ("kind", "'EVENT'"),
]
WRITTEN = [*NOT_UTF8, *BYTES, *OTHERS]
SENT = {
    *(each for each in NOT_UTF8 if each[0] not in ("event_id", "topic")),
    *(each for each in OTHERS if each[0] == "type" or "9223372036854775807" in each[1] or each[0] == "kind"),
}
"""With what they have as text. All others are held."""
TOPICS = ("x\\xff", "", "x" * 250, "a\x00b", "\U0001f600" * 70, "a/b", "a\nb")


@pytest.fixture
def odd(tmp_path: Path) -> Store:
    """A good row before and behind each odd one, keys of their own."""
    store = sqlite_store(tmp_path / "app.db")
    store.fill(2 * len(WRITTEN) + 1, keys=1000)
    with contextlib.closing(store.connect()) as connection:
        connection.execute("pragma ignore_check_constraints = on")
        for number, (column, value) in enumerate(WRITTEN):
            connection.execute(f"update relevo_outbox set {column} = {value} where seq = {2 * number + 2}")
        connection.commit()
    return store


async def test_a_row_that_was_written_by_hand_spoils_itself_only(odd: Store, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'broker.db'}"
    broker = broker_for(url)
    await broker.ensure_topics(["shop.order"])
    publisher = await broker.publisher(source="urn:relevo:test")
    try:
        async with running_relay(odd, cast(Any, publisher), batch_max=20):
            await eventually(lambda: odd.unsettled() == 0, what="every row has its outcome")
    finally:
        await publisher.aclose()
    subscription = await broker.subscribe("all", ["shop.order"])
    try:
        sent = [delivery.position async for delivery in everything(subscription)]
    finally:
        await subscription.aclose()
    outcomes = dict(odd.query("select seq, outcome from relevo_outbox"))
    assert {outcomes[seq] for seq in outcomes if seq % 2} == {"published"}
    held = [seq for seq, outcome in outcomes.items() if outcome == "held"]
    assert len(sent) == len(outcomes) - len(held)
    assert {WRITTEN[seq // 2 - 1] for seq in held} == {each for each in WRITTEN if each not in SENT}
    await asyncio.to_thread(looked_at, odd, url, len(held))


def looked_at(store: Store, broker: str, count: int) -> None:
    """The commands show all that is held."""
    environment = {"RELEVO_DATABASE_URL": store.url, "RELEVO_BROKER_URL": broker}
    for command in (["parked", "list"], ["status"], ["parked", "list", "--output", "jsonl"]):
        result = CliRunner(env=environment).invoke(cli, command)
        assert result.exit_code in (0, 1) and isinstance(result.exception, SystemExit | None), (command, result)
    assert len([json.loads(line) for line in result.stdout.splitlines()]) == count
    wrong = []
    for (key,) in store.query("select hex(key) from relevo_held_key"):
        name = bytes.fromhex(key).decode()
        result = CliRunner(env=environment).invoke(cli, ["parked", "show", "--side", "relay", "--key", name])
        if result.exit_code != 0:
            wrong.append((name, result.output, result.exception))
    assert wrong == []


async def everything(subscription: Any) -> AsyncIterator[Any]:
    while found := await subscription.take(1000, 1.0):
        for each in found:
            yield each


@pytest.mark.parametrize("broker_name", ["embedded", "kafka", "rabbitmq"])
async def test_a_topic_that_no_broker_can_have_spoils_its_own_message_only(
    broker_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Rejected at once; what is published beside it goes out."""
    embedded = broker_name == "embedded"
    url = f"embedded:{tmp_path / 'broker.db'}" if embedded else request.getfixturevalue(f"{broker_name}_url")
    broker, topic = broker_for(url), f"by.hand.{secrets.token_hex(8)}"
    await broker.ensure_topics([topic])
    subscription = await broker.subscribe("g-" + topic, [topic])  # RabbitMQ keeps nothing without one
    publisher = await broker.publisher(source="urn:relevo:test")
    try:
        for odd_topic in TOPICS:
            messages = [make_message(each, key=b"k") for each in (topic, odd_topic, topic)]
            outcomes = await publisher.publish(messages)
            assert list(outcomes) == [1], (odd_topic, outcomes)
            assert isinstance(outcomes[1], Rejected) and outcomes[1].code == "unknown_topic"
            assert isinstance(await publisher.probe(odd_topic), Rejected)
    finally:
        await publisher.aclose()
        await subscription.aclose()
