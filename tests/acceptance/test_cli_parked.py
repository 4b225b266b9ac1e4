"""`relevo parked` as an operator types it, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from relevo.cli.parked.one import find
from relevo.clients import database_for
from relevo.errors import RefusedError
from relevo.ops.parked import Operator, drop_one
from relevo.ops.parked_edit import edit
from relevo.storage.parking import Selection
from tests.support.cli import Cli
from tests.support.consumers import effects, inbox, order
from tests.support.parking import drain_at_consumer, park_at_consumer, park_at_relay
from tests.support.relays import Store, postgres_store, sqlite_store

ARRIVALS = [("a", 1), ("b", 10), ("a", 2), ("c", 20), ("a", 3), ("b", 11)]
BAD = {1, 10}


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return sqlite_store(tmp_path / "app.db")
    return postgres_store(request.getfixturevalue("pg_database"))


@pytest.fixture
def parked(store: Store, tmp_path: Path) -> Any:
    """`relevo parked …` on that database."""
    cli = Cli(tmp_path)
    return lambda *arguments, **more: cli(
        "parked", *arguments, env={"RELEVO_DATABASE_URL": store.url, **more.pop("env", {})}, **more
    )


def audits(store: Store) -> list[tuple[str, str, str, int]]:
    rows = store.query("select action, actor, reason, count from relevo_audit order by audit_id")
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def ids(store: Store) -> dict[int, str]:
    """Event ids of what is held at the consumer, by order number."""
    rows = store.query("select payload, event_id from relevo_held_message where side = 'consumer'")
    return {json.loads(bytes(row[0]))["order_id"]: str(row[1]) for row in rows}


def json_of(result: Any) -> Any:
    assert result.code == 0, result
    return json.loads(result.out)


async def test_list_and_show(store: Store, parked: Any) -> None:
    """FAILURES row 15: the key says parked, with its reason and the number behind. One by one, by error group, filtered
    by every option; one key with its queue and payloads."""
    await park_at_consumer(store, ARRIVALS, BAD)
    await park_at_relay(store, 6, 2, {1})
    keys = json_of(parked("list", "--output", "json"))
    assert [(key["side"], key["consumer"], key["key"], key["state"], key["messages"]) for key in keys] == [
        ("consumer", "billing", "a", "parked", 3),
        ("consumer", "billing", "b", "parked", 2),
        ("relay", "", "k1", "parked", 3),
    ]
    assert keys[0]["error_group"].startswith("ValueError at tests.support.parking:billing.")
    groups = json_of(parked("list", "--group", "--side", "consumer", "--output", "json"))
    assert [(group["keys"], group["messages"]) for group in groups] == [(2, 5)]
    largest = parked("list", "--group", "--limit", "1", "--output", "json")
    assert "only the first 1 groups are shown" in largest.err
    assert [(group["side"], group["keys"], group["messages"]) for group in json_of(largest)] == [("consumer", 2, 5)]
    assert json_of(parked("list", "--group", "--error", "ValueErr", "--output", "json")) == []
    assert [group["keys"] for group in json_of(parked("list", "--group", "--key", "b", "--output", "json"))] == [1]
    for options, expected in [
        (["--key", "a"], ["a"]),
        (["--key-hex", "61"], ["a"]),
        (["--consumer", "billing"], ["a", "b"]),
        (["--side", "relay"], ["k1"]),
        (["--error", "ValueError"], ["a", "b"]),
        (["--error", keys[0]["error_group"]], ["a", "b"]),
        (["--error", "ValueErr"], []),
        (["--older-than", "1h"], []),
        (["--older-than", "0s", "--topic", "shop.order"], ["a", "b", "k1"]),
        (["--id", ids(store)[11]], ["b"]),
        (["--state", "waiting"], []),
    ]:
        lines = parked("list", *options, "--output", "jsonl").out.splitlines()
        assert [json.loads(line)["key"] for line in lines] == expected, options
    table = parked("list")
    assert "billing" in table.out and "ValueError" in table.out and "k1" in table.out
    one = json_of(parked("show", "--key", "a", "--output", "json"))
    assert [json.loads(each["payload"])["order_id"] for each in one["queue"]] == [1, 2, 3]
    assert one["key"]["error"] == "no price for 1" and one["key"]["attempts"] == 1
    text = parked("show", "--key", "a", "--limit", "1").out
    assert "no price for 1" in text and "and 2 messages more" in text
    parked("show").refused(1, "several keys")
    parked("show", "--key", "nobody").refused(1, "no held key")


async def test_redrive(store: Store, parked: Any) -> None:
    """Dry run with the exact count, confirmation, audit; then everything is complete and in order."""
    broker = await park_at_consumer(store, ARRIVALS, BAD)
    assert "would redrive 2 keys with 5 messages" in parked("redrive", "--consumer", "billing", "--dry-run").err
    assert "would redrive 1 key with 2 messages" in parked("redrive", "--key", "b", "--dry-run").err
    assert "nothing parked is selected" in parked("redrive", "--key", "nobody", "--yes").err
    unasked = parked("redrive", "--consumer", "billing")
    assert unasked.code == 2 and "--yes" in unasked.err
    assert {row[0] for row in store.query("select state from relevo_held_key")} == {"parked"}
    assert audits(store) == []
    done = parked("redrive", "--consumer", "billing", "--yes", "--as", "ann", "--reason", "prices are in")
    assert done.code == 0 and "redriven: 2 keys with 5 messages" in done.err
    assert audits(store) == [("parked.redrive", "ann", "prices are in", 5)]
    assert store.query("select state, done, total from relevo_job") == [("done", 2, 2)]
    await drain_at_consumer(store, broker, set())
    assert store.query("select count(*) from relevo_held_key") == [(0,)]
    assert [number for number in effects(store) if number < 10] == [1, 2, 3]
    assert [number for number in effects(store) if 10 <= number < 20] == [10, 11]


@pytest.mark.parametrize("verb", ["redrive", "discard", "skip", "edit"])
async def test_an_empty_filter_is_refused(store: Store, parked: Any, verb: str) -> None:
    """Nothing selected is a mistake, and never everything; --all says so, and not beside a filter."""
    parked(verb, "--yes").refused(2, "nothing is selected")
    if verb in ("redrive", "discard"):
        assert "nothing parked" in parked(verb, "--all", "--yes").err
        parked(verb, "--all", "--key", "a", "--yes").refused(2, "exclude each other")


async def test_skip_drops_the_first_and_the_rest_drains(store: Store, parked: Any) -> None:
    """The inbox says skipped, a redelivery does not bring it back, what waited behind is handled."""
    broker = await park_at_consumer(store, ARRIVALS, BAD)
    first = ids(store)[1]
    assert f"would skip 1 message: message {first}" in parked("skip", "--key", "a", "--dry-run").err
    parked("skip", "--consumer", "billing", "--yes").refused(1, "several keys")
    assert parked("skip", "--key", "a", "--yes", "--as", "ann").code == 0
    assert inbox(store)[UUID(first)] == "skipped"
    assert audits(store) == [("parked.skip", "ann", "", 1)]
    broker.append(msgspec.structs.replace(order(1, "a"), event_id=UUID(first)))
    await drain_at_consumer(store, broker, BAD)
    assert effects(store) == [20, 2, 3]


async def test_skip_and_discard_of_one_in_the_middle_leave_the_key_parked(store: Store, parked: Any) -> None:
    """Not the first one: the key stays as it is, one message fewer, until it is redriven."""
    broker = await park_at_consumer(store, ARRIVALS, BAD)
    assert parked("skip", "--id", ids(store)[2], "--yes").code == 0
    assert parked("discard", "--id", ids(store)[11], "--yes").code == 0
    assert sorted(ids(store)) == [1, 3, 10]
    assert {row[0] for row in store.query("select state from relevo_held_key")} == {"parked"}
    assert sorted(inbox(store).values()) == ["discarded", "done", "skipped"]
    assert parked("redrive", "--all", "--yes").code == 0
    await drain_at_consumer(store, broker, set())
    assert sorted(effects(store)) == [1, 3, 10, 20]


async def test_discard_a_whole_key(store: Store, parked: Any) -> None:
    """Everything of it is given up: no row is left, the inbox has one per message, the key is live at once."""
    broker = await park_at_consumer(store, ARRIVALS, BAD)
    assert "would discard 1 key with 3 messages" in parked("discard", "--key", "a", "--dry-run").err
    assert "discarded: 1 key with 3 messages" in parked("discard", "--key", "a", "--yes").err
    assert sorted(ids(store)) == [10, 11]
    assert list(inbox(store).values()).count("discarded") == 3
    assert audits(store)[0][0] == "parked.discard" and audits(store)[0][3] == 3
    await drain_at_consumer(store, broker, BAD)
    assert effects(store) == [20]


async def test_relay_side(store: Store, parked: Any) -> None:
    """The same commands on the relay's side: the outbox keeps what is given up, with the outcome held."""
    await park_at_relay(store, 9, 3, {0, 1, 2})
    assert "would redrive 3 keys with 9 messages" in parked("redrive", "--side", "relay", "--dry-run").err
    assert parked("skip", "--key", "k0", "--yes").code == 0
    assert parked("discard", "--key", "k1", "--yes").code == 0
    assert store.query("select state from relevo_held_key order by key") == [("draining",), ("parked",)]
    assert store.query("select outcome, count(*) from relevo_outbox group by outcome") == [("held", 9)]
    assert store.query("select count(*) from relevo_held_message") == [(5,)]
    assert store.query("select count(*) from relevo_inbox") == [(0,)]


async def test_edit(store: Store, parked: Any, tmp_path: Path) -> None:
    """A corrected order in the place of the wrong one: new id, the old one remembered, the original bytes untouched
    elsewhere. From a file, and from an editor."""
    broker = await park_at_consumer(store, ARRIVALS, BAD)
    old = ids(store)[1]
    right = tmp_path / "right.json"
    right.write_text("{not json")
    parked("edit", "--id", old, "--payload", str(right), "--yes").refused(1, "is not JSON")
    right.write_text(json.dumps({"order_id": 5, "note": "x" * 2_000_000}))
    parked("edit", "--id", old, "--payload", str(right), "--yes").refused(1, "allowed")
    right.write_text('{"order_id": 5, "note": "corrected"}')
    assert "would replace 1 message" in parked("edit", "--id", old, "--payload", str(right), "--dry-run").err
    done = parked("edit", "--id", old, "--payload", str(right), "--yes", "--as", "ann", "--reason", "typo")
    assert done.code == 0, done
    new = done.out.strip()
    parked("edit", "--id", new, "--payload", str(right), "--yes").refused(1, "as it was")
    ((payload, headers, edited_from, key),) = store.query(
        f"select payload, headers, edited_from, key from relevo_held_message where event_id = '{new}'"
    )
    headers = headers if isinstance(headers, dict) else json.loads(headers)
    assert (bytes(payload), bytes(key)) == (right.read_bytes(), b"a")
    assert headers["relevo-edited-from"] == old == str(edited_from)
    assert [outcome for event_id, outcome in inbox(store).items() if str(event_id) == old] == ["discarded"]
    assert audits(store) == [("parked.edit", "ann", "typo", 1)]
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/10/15/' \"$1\"\n")
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    assert parked("edit", "--key", "b", env={"EDITOR": str(editor)}).code == 0
    assert parked("redrive", "--all", "--yes").code == 0
    await drain_at_consumer(store, broker, set())
    assert [number for number in effects(store) if number in (5, 2, 3)] == [5, 2, 3]
    assert [number for number in effects(store) if number in (15, 11)] == [15, 11]


@pytest.mark.parametrize("outcome", ["skipped", "discarded"])
async def test_a_message_that_was_edited_while_somebody_was_asked_about_it(store: Store, outcome: Any) -> None:
    """Ann is asked whether to drop a message, bob corrects it, ann says yes: the correction stays, and nothing is
    written in ann's name."""
    await park_at_consumer(store, ARRIVALS, BAD)
    database = database_for(store.settings)
    try:
        key, asked = await find(database, Selection(consumer="billing", key=b"a"))
        new = await edit(database, key, asked, b'{"order_id": 5}', Operator("bob", "typo"), bytes_max=10_000)
        with pytest.raises(RefusedError, match="not as it was: look again"):
            await drop_one(database, key, asked, Operator("ann", "cancelled"), outcome)
    finally:
        await database.aclose()
    assert ids(store)[5] == str(new.event_id)
    assert audits(store) == [("parked.edit", "bob", "typo", 1)]


async def test_a_key_being_drained_is_left_alone(store: Store, parked: Any) -> None:
    """A live claim: every act refuses with a clear message, and nothing changes."""
    await park_at_consumer(store, ARRIVALS, {1})
    far = "clock_timestamp() + interval '1 hour'" if store.is_postgres else "9999999999999"
    holder = "00000000-0000-0000-0000-000000000001"
    store.do(f"update relevo_held_key set state = 'draining', holder = '{holder}', expires_at = {far}")
    before = store.query("select state, epoch from relevo_held_key")
    parked("skip", "--key", "a", "--yes").refused(1, "being drained right now")
    parked("discard", "--id", ids(store)[2], "--yes").refused(1, "being drained right now")
    assert "nothing parked" in parked("discard", "--key", "a", "--yes").err
    assert store.query("select state, epoch from relevo_held_key") == before
    assert len(ids(store)) == 3 and audits(store) == []


async def test_a_rate_and_a_job_that_was_killed(store: Store, parked: Any) -> None:
    """Killed in the middle of a step and after one: run again it goes on, and the audit adds up to exactly all."""
    await park_at_relay(store, 40, 20, set(range(20)))
    for point in ("parked.stepping=kill:2", "parked.stepped=kill:2"):
        killed = parked("redrive", "--side", "relay", "--rate", "20", "--yes", env={"RELEVO_PROBE": point})
        assert killed.code == -9 and f"probe {point.partition('=')[0]}" in killed.err
    states = dict(store.query("select state, count(*) from relevo_held_key group by state"))
    assert states == {"draining": 15, "parked": 5}
    done = parked("redrive", "--side", "relay", "--rate", "20", "--yes")
    assert "taken up again" in done.err and "redriven: 1 key" not in done.err
    assert store.query("select state, count(*) from relevo_held_key group by state") == [("draining", 20)]
    assert sum(count for *_, count in audits(store)) == 40
    assert store.query("select state, done, total from relevo_job") == [("done", 20, 20)]


def test_bad_input(store: Store, parked: Any) -> None:
    """Wrong values name what they should have been; nothing is touched."""
    for arguments, part in [
        (["list", "--older-than", "soon"], "30m"),
        (["list", "--key-hex", "xyz"], "hexadecimal"),
        (["list", "--key", "a", "--key-hex", "61"], "exclude each other"),
        (["list", "--id", "7"], "not a valid UUID"),
        (["redrive", "--key", "a", "--rate", "0"], "--rate"),
        (["redriev"], "did you mean 'redrive'"),
        (["publish", "--key", "a"], "--to-dlq"),
    ]:
        result = parked(*arguments)
        assert result.code == 2 and part in result.err and "Traceback" not in result.err, result
