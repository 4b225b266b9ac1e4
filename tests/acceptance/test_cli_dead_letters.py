"""Dead letters and back, through real brokers: embedded beside SQLite, Kafka beside PostgreSQL."""

from __future__ import annotations

import json
import secrets
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relevo.brokers import broker_for
from relevo.message import Message
from tests.support.cli import Cli
from tests.support.consumers import effects, inbox, make_effects, order, running, settled
from tests.support.fake_subscription import FakeBroker
from tests.support.parking import billing
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.waiting import eventually, eventually_sync


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, str]:
    """Store and broker URL."""
    if request.param == "sqlite":
        return sqlite_store(tmp_path / "app.db"), f"embedded:{tmp_path / 'broker.db'}"
    return postgres_store(request.getfixturevalue("pg_database")), request.getfixturevalue("kafka_url")


async def park(store: Store, consumer: str) -> tuple[FakeBroker, list[Message]]:
    """Key a parked with three messages, one of them with odd bytes and headers."""
    make_effects(store)
    broker, messages = FakeBroker(), [order(1, "a"), order(2, "b"), order(3, "a"), order(4, "a")]
    messages[0] = msgspec.structs.replace(
        messages[0], headers={"traceparent": "00-" + "a" * 32}, payload=b'{ "order_id":1, "note": "\xc3\xa4" }'
    )
    broker.append(*messages)
    declared = billing({1})
    declared.name = consumer
    async with running(declared, store, broker):
        await settled(broker)
    return broker, [messages[0], messages[2], messages[3]]


async def read(url: str, topic: str, count: int) -> list[Message]:
    subscription = await broker_for(url, {}).subscribe("test-" + secrets.token_hex(4), [topic])
    found: list[Message] = []
    try:
        for _ in range(60):
            deliveries = await subscription.take(count - len(found), 1.0)
            found += [delivery.message for delivery in deliveries]
            await subscription.settle(deliveries)
            if len(found) == count:
                return found
    finally:
        await subscription.aclose()
    raise AssertionError(f"only {len(found)} of {count}")


async def test_there_and_back(place: tuple[Store, str], tmp_path: Path) -> None:
    """FAILURES row 22: published byte for byte with the causes beside; held until confirmed, then discarded with a
    trace; brought back it drains in order, exactly once, and a second time is known."""
    store, url = place
    consumer = "billing" + secrets.token_hex(3)
    broker, parked = await park(store, consumer)
    cli = Cli(tmp_path)
    env = {"RELEVO_DATABASE_URL": store.url, "RELEVO_BROKER_URL": url}

    def relevo(*arguments: str) -> Any:
        return cli("parked", *arguments, env=env)

    letters = f"{consumer}.shop.order.dlq"
    relevo("publish", "--to-dlq", "--yes").refused(2, "nothing is selected")
    relevo("publish", "--to-dlq", "--side", "relay", "--yes").refused(2, "consumer's side")
    dry = relevo("publish", "--to-dlq", "--consumer", consumer, "--dry-run")
    assert f"would publish 1 key with 3 messages to {letters}" in dry.err
    if url.startswith("kafka"):
        lost = relevo("publish", "--to-dlq", "--consumer", consumer, "--yes")
        assert lost.code == 3 and "still held" in lost.err
        assert store.query("select state from relevo_held_key") == [("parked",)]
    done = relevo("publish", "--to-dlq", "--consumer", consumer, "--yes", "--create-topics", "--as", "ann")
    assert done.code == 0 and "published: 1 key with 3 messages" in done.err, done
    assert store.query("select count(*) from relevo_held_key") == [(0,)]
    assert [inbox(store)[message.event_id] for message in parked] == ["skipped"] * 3
    assert store.query("select action, actor, count from relevo_audit") == [("parked.publish", "ann", 3)]

    found = await read(url, letters, 3)
    assert [message.event_id for message in found] == [message.event_id for message in parked]
    for letter, message in zip(found, parked, strict=True):
        assert (letter.payload, letter.key, letter.type) == (message.payload, message.key, message.type)
        assert {name: letter.headers[name] for name in message.headers} == message.headers
        assert letter.headers["relevo-original-topic"] == "shop.order"
        assert "no price for 1" in letter.headers["relevo-cause"] and letter.headers["relevo-attempts"] == "1"

    back = ("from-dlq", "--consumer", consumer, "--topic", "shop.order", "--wait", "20")
    assert f"would bring back 3 messages of {letters}" in relevo(*back, "--dry-run").err
    assert "brought back: 3 messages" in relevo(*back, "--yes").err
    declared = billing(set())
    declared.name = consumer
    ((payload, headers),) = store.query(
        f"select payload, headers from relevo_held_message where event_id = '{parked[0].event_id}'"
    )
    headers = headers if isinstance(headers, dict) else json.loads(headers)
    assert (bytes(payload), headers) == (parked[0].payload, parked[0].headers)
    await drain(store, broker, declared)
    assert effects(store) == [2, 1, 3, 4]
    assert "is empty" in relevo(*back[:-1], "8", "--yes").err


@pytest.mark.parametrize("asked", [False, True])
async def test_what_was_discarded_stays_so_unless_that_is_asked_for(
    place: tuple[Store, str], tmp_path: Path, asked: bool
) -> None:
    """One of three letters is of a message that somebody discarded, or replaced by an edit, which writes the same."""
    store, url = place
    consumer = "billing" + secrets.token_hex(3)
    _, parked = await park(store, consumer)
    cli = Cli(tmp_path)
    env = {"RELEVO_DATABASE_URL": store.url, "RELEVO_BROKER_URL": url}
    moved = ("parked", "publish", "--to-dlq", "--consumer", consumer, "--yes", "--create-topics")
    assert cli(*moved, env=env).code == 0
    given_up = parked[1].event_id
    store.do(f"update relevo_inbox set outcome = 'discarded' where event_id = '{given_up}'")
    back = ["parked", "from-dlq", "--consumer", consumer, "--topic", "shop.order", "--wait", "20", "--yes"]
    done = cli(*back, *(["--discarded"] if asked else []), env=env)
    held = {str(row[0]) for row in store.query("select event_id from relevo_held_message")}
    if asked:
        assert "brought back: 3 messages" in done.err and "left out" not in done.err
        assert held == {str(message.event_id) for message in parked}
    else:
        assert "brought back: 2 messages; 1 message left out, discarded or replaced by an edit" in done.err
        assert held == {str(message.event_id) for message in parked} - {str(given_up)}
        assert inbox(store)[given_up] == "discarded"


async def drain(store: Store, broker: FakeBroker, declared: Any) -> None:
    async with running(declared, store, broker):
        await eventually(lambda: store.query("select count(*) from relevo_held_key") == [(0,)], what="drained")


async def park_many(store: Store, consumer: str, keys: int) -> list[Message]:
    """Each key parked with three messages; in the order of arrival."""
    make_effects(store)
    broker = FakeBroker()
    messages = [order(number, f"k{number % keys}") for number in range(keys * 3)]
    broker.append(*messages)
    declared = billing(set(range(keys)))
    declared.name = consumer
    async with running(declared, store, broker):
        await settled(broker, timeout_s=60)
    assert store.query("select count(*) from relevo_held_message") == [(keys * 3,)]
    return messages


async def test_publishing_is_a_job(place: tuple[Store, str], tmp_path: Path) -> None:
    """FAILURES row 22. Killed by SIGKILL when the broker had confirmed the third key's batch and nothing was removed:
    run again, it takes the same job up and ends it. Every message is a dead letter, in order per
    key; only that one batch is there twice, under the same ids; the audit counts each message once."""
    store, url = place
    consumer = "billing" + secrets.token_hex(3)
    messages = await park_many(store, consumer, 6)
    letters = f"{consumer}.shop.order.dlq"
    await broker_for(url).ensure_topics([letters])
    env = {"RELEVO_DATABASE_URL": store.url, "RELEVO_BROKER_URL": url, "RELEVO_CONSUMER_LEASE_S": "1.5"}
    cli = Cli(tmp_path)
    publish = ("parked", "publish", "--to-dlq", "--consumer", consumer)
    dry = cli(*publish, "--dry-run", env=env)
    assert "would publish 6 keys with 18 messages" in dry.err
    killed = cli(*publish, "--yes", env=env | {"RELEVO_PROBE": "parked.published=kill:3"})
    assert killed.code == -signal.SIGKILL and "6 of 18 messages, 2 keys" in killed.err, killed
    ((job, state, done, total),) = store.query("select job_id, state, done, total from relevo_job")
    assert (state, done, total) == ("running", 6, 18)
    assert "would publish 4 keys with 12 messages" in cli(*publish, "--dry-run", env=env).err
    resumed = cli(*publish, "--yes", env=env)
    assert resumed.code == 0 and f"published: 4 keys with 12 messages (job {job} taken up again)" in resumed.err, (
        resumed
    )
    assert store.query("select state, done, total from relevo_job") == [("done", 18, 18)]
    assert store.query("select sum(count), count(distinct job_id) from relevo_audit") == [(18, 1)]
    assert store.query("select count(*) from relevo_held_message") == [(0,)]
    found = await read(url, letters, 21)
    for key in range(6):
        ids = [message.event_id for message in found if message.key == f"k{key}".encode()]
        expected = [message.event_id for message in messages if message.key == f"k{key}".encode()]
        assert ids == (expected * 2 if len(ids) == 6 else expected)
    assert len(found) == 21


async def test_publishing_has_a_rate_and_can_be_cancelled(place: tuple[Store, str], tmp_path: Path) -> None:
    """One message a second; a second process waits for it; another person cancels: it stops after what is under way,
    says so, and what was not published stays parked. It is not taken up again: the next run begins another job. At
    that rate there is work for two minutes: longer than all these commands take on a slow machine."""
    store, url = place
    consumer = "billing" + secrets.token_hex(3)
    await park_many(store, consumer, 40)
    await broker_for(url).ensure_topics([f"{consumer}.shop.order.dlq"])
    env = {"RELEVO_DATABASE_URL": store.url, "RELEVO_BROKER_URL": url}
    cli = Cli(tmp_path)
    publish = ("parked", "publish", "--to-dlq", "--consumer", consumer, "--yes")
    with cli.running(*publish, "--rate", "1", env=env) as process:
        eventually_sync(lambda: store.query("select 1 from relevo_job where done > 0"), what="begun", timeout_s=60)
        assert process.poll() is None
        (line,) = json.loads(cli("jobs", "list", "--output", "json", env=env).out)
        assert (line["kind"], line["state"], line["total"], line["rate"]) == ("parked.publish", "running", 120, 1.0)
        with cli.running(*publish, env=env) as second:
            assert second.stderr is not None
            assert "another process publishes" in second.stderr.readline()
        done = cli("jobs", "cancel", line["job_id"], "--reason", "wrong consumer", "--as", "bob", env=env)
        assert done.code == 0 and "is cancelled" in done.err, done
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1 and "was cancelled" in err, err
    assert store.query("select 1 from relevo_audit where action = 'job.cancel' and actor = 'bob'") == [(1,)]
    ((left,),) = store.query("select count(*) from relevo_held_message")
    assert 0 < left < 120
    assert cli(*publish, env=env).code == 0
    states = [row[0] for row in store.query("select state from relevo_job order by started_at")]
    assert states == ["cancelled", "done"] and store.query("select count(*) from relevo_held_message") == [(0,)]
