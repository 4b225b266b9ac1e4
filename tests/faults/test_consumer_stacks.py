"""What breaks consumers, on each database with a real broker: twins, handlers that fail, odd errors, strangers."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import psycopg
import pytest

from relevo import Backoff, Event
from relevo.clients import database_for
from relevo.ops import purge as purging
from relevo.settings import ConsumerSettings, RetentionSettings, Settings
from tests.support.consumers import effects, held, inbox, insert, queue, running
from tests.support.consuming import Consuming
from tests.support.events import OrderPlaced
from tests.support.stacks import EMBEDDED
from tests.support.swallowing import SwallowingProxy
from tests.support.waiting import eventually


async def test_twins_at_once_on_two_members_have_one_effect(consuming: Consuming) -> None:
    """FAILURES row 29. The same id stands in two shards, which two members of the group have: both get it while the
    first is inside the handler. One effect; the other waits in its inbox insert (PostgreSQL), sees the first one's row,
    and settles without an error."""
    seen: dict[str, set[str]] = {"first": set(), "second": set()}
    runs: list[str] = []
    go = threading.Event()

    def member(name: str) -> Any:
        consumer = consuming.billing(retry=Backoff(attempts=1))

        @consumer.on(OrderPlaced)
        def handle(event: Event[OrderPlaced], tx: Any) -> None:
            assert event.key is not None
            seen[name].add(event.key.decode())
            if event.data.order_id == 1:
                runs.append(name)
                assert go.wait(50)
                insert(tx, 1)

        return consumer

    probes = 0

    async def shared() -> bool:
        nonlocal probes
        for keys in seen.values():
            keys.clear()
        probes += 1
        await consuming.publish(*(consuming.order(100 + probes, f"k{number}") for number in range(12)))
        await eventually(lambda: len(seen["first"] | seen["second"]) == 12, what="all keys seen", timeout_s=40)
        return bool(seen["first"] and seen["second"])

    async with (
        running(member("first"), consuming.store, consuming.broker) as first,
        running(member("second"), consuming.store, consuming.broker) as second,
    ):
        await eventually(shared, what="both members have keys", timeout_s=60, every_s=0.2)
        twin = consuming.order(1, min(seen["first"]))
        await consuming.publish(twin, msgspec.structs.replace(twin, key=min(seen["second"]).encode()))
        await eventually(lambda: runs, what="one of the twins is inside its handler", timeout_s=40)
        if consuming.store.is_postgres:
            waiting = (
                "select count(*) from pg_stat_activity where wait_event = 'transactionid' and query like '%inbox%' "
                "and datname = current_database()"
            )
            await eventually(lambda: consuming.store.query(waiting)[0][0] == 1, what="the other waits", timeout_s=40)
        go.set()
        await consuming.settled(first, second)
    assert effects(consuming.store) == [1]
    assert len(runs) == 1
    assert held(consuming.store) == []


async def test_a_handler_that_writes_and_raises_leaves_nothing(consuming: Consuming) -> None:
    """FAILURES row 30. Nothing of a failed attempt remains: of one that fails for good (it parks), of one that fails
    twice in place, and of one that fails once and waits in the table."""
    consumer = consuming.billing()
    attempts: dict[int, list[int]] = {number: [] for number in range(1, 6)}

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        number = event.data.order_id
        attempts[number].append(event.attempt)
        insert(tx, number)
        if event.attempt <= {1: 99, 3: 2}.get(number, 0):
            raise ValueError("no such customer")

    @consumer.on("shop.order.later", inline_retry_s=0.0)
    def later(event: Event[Any], tx: Any) -> None:
        attempts[5].append(event.attempt)
        insert(tx, 5)
        if event.attempt == 1:
            raise ValueError("not yet")

    await consuming.publish(
        *(consuming.order(1, "a"), consuming.order(2, "a"), consuming.order(3, "b"), consuming.order(4, "b")),
        consuming.order(5, "c", type="shop.order.later"),
    )
    store = consuming.store
    async with running(consumer, store, consuming.broker) as up:
        await consuming.done(lambda: len(effects(store)) >= 3 and len(held(store)) == 1, up)
    assert sorted(effects(store)) == [3, 4, 5]
    assert [number for number in effects(store) if number != 5] == [3, 4]
    assert {number: sorted(set(found)) for number, found in attempts.items()} == {
        1: [1, 2, 3, 4],
        2: [],
        3: [1, 2, 3],
        4: [1],
        5: [1, 2],
    }
    assert sorted(inbox(store).values()) == ["done"] * 3
    [(state, reason, error_type, counted)] = held(store)
    assert (state, counted) == ("parked", 4) and "no such customer" in reason
    assert error_type is not None and error_type.startswith("ValueError at tests.faults.test_consumer_stacks:")
    assert queue(store) == [1, 2]


@pytest.mark.parametrize("delivered", [True, False], ids=["committed", "not-committed"])
async def test_a_lost_reply_to_commit_is_looked_up(consuming: Consuming, delivered: bool) -> None:
    """FAILURES row 31. The connection dies while COMMIT is under way, once after the server did it and once before.
    Either way the inbox is looked at on another connection: one effect for each message, in order, and nothing parks
    although the policy has one attempt. (SQLite has no connection to lose.)"""
    store = consuming.store
    if not store.is_postgres:
        pytest.skip("SQLite commits in this process")
    proxy = SwallowingProxy(store.url, deliver=delivered)
    async with proxy.serve() as url:
        consumer = consuming.billing(tx=lambda: psycopg.connect(url), retry=Backoff(attempts=1))

        @consumer.on(OrderPlaced)
        def handle(event: Event[OrderPlaced], tx: psycopg.Connection[Any]) -> None:
            insert(tx, event.data.order_id)
            if event.data.order_id == 1 and not proxy.cut:
                proxy.armed = True

        async with running(consumer, store, consuming.broker) as up:
            await consuming.publish(*(consuming.order(number) for number in range(4)))
            await consuming.done(lambda: len(effects(store)) >= 4, up)
    assert proxy.cut == 1
    assert effects(store) == [0, 1, 2, 3]
    assert held(store) == []


async def test_the_error_s_text_is_stored_clean_and_cut(consuming: Consuming) -> None:
    """FAILURES row 35. A NUL, a lone surrogate, a password in a URL and a megabyte of text, in one error; on PostgreSQL
    also a megabyte that comes from the server. Both park, with a text that can be stored and read."""
    consumer = consuming.billing(retry=Backoff(attempts=1))

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        if event.data.order_id == 1 or not consuming.store.is_postgres:
            raise ValueError("a\x00b \ud800 amqp://me:secret@host/ " + "x" * 1_000_000)
        tx.execute("do $$ begin raise exception 'a %', repeat('y', 1000000); end $$")

    await consuming.publish(consuming.order(1, "a"), consuming.order(2, "b"))
    async with running(consumer, consuming.store, consuming.broker) as up:
        await consuming.done(lambda: len(held(consuming.store)) == 2, up, what="both are parked")
    texts = consuming.store.query("select error, reason from relevo_held_key order by error")
    assert texts[0][0].startswith(
        "a\\x00b \\ud800 amqp://me:***@host/ xxx" if not consuming.store.is_postgres else "a "
    )
    for error, reason in texts:
        assert error.endswith("(cut)")
        assert len(error.encode()) <= 8192 and len(reason.encode()) <= 8192
        assert "secret" not in error + reason


ODD: list[tuple[str, bytes | None, list[tuple[str, bytes]], str]] = [
    ("not JSON", b"{not json", [("ce_type", b"shop.order.placed")], "UndecodableError"),
    ("not UTF-8", b"\xff\xfe\x00", [("ce_type", b"shop.order.placed")], "UndecodableError"),
    ("nothing", None, [("ce_type", b"shop.order.placed")], "UndecodableError"),
    ("an unknown type", b"{}", [("ce_type", b"shop.order.unheard")], "NoHandler"),
    ("no header at all", b"{}", [], "NoType"),
    ("a NUL in the type", b"{}", [("ce_type", b"shop.\x00order")], "NoHandler"),
    ("a NUL in a header", b"{}", [("ce_type", b"x.y"), ("note", b"a\x00b")], "NoHandler"),
    ("a NUL in a name", b"{}", [("ce_type", b"x.y"), ("no\x00te", b"ab")], "NoHandler"),
    ("not text", b"{}", [("ce_type", b"\xff\xfe"), ("content-type", b"\x00\xff")], "NoHandler"),
    ("a long type", b"{}", [("ce_type", b"x" * 5000), ("ce_aggregatetype", b"\x00")], "NoHandler"),
    ("a version beyond", b"{}", [("ce_type", b"x.y"), ("ce_schemaversion", b"9" * 15)], "NoHandler"),
    ("a time out of time", b"{}", [("ce_type", b"x.y"), ("ce_time", b"0001-01-01T00:00:00+14:00")], "NoHandler"),
    ("k" * 10_000, b"{}", [("ce_type", b"x.y")], "NoHandler"),
    ("a lone surrogate", b'{"order_id": 1, "note": "\\ud800"}', [("ce_type", b"shop.order.placed")], ""),
    ("a NUL in the data", b'{"order_id": 2, "note": "x\\u0000y"}', [("ce_type", b"shop.order.placed")], ""),
]


async def test_what_strangers_send_parks_with_its_reason(consuming: Consuming) -> None:
    """FAILURES rows 37 and 38. By the broker's own client: not JSON, unknown and missing types, NULs and bytes that are
    no text wherever bytes can be. Each parks with its reason, none is skipped or comes again and again; a NUL in the
    data reaches the handler as it was sent, and what cannot be text of a database parks; the neighbours are handled."""
    if consuming.name == EMBEDDED:
        pytest.skip("the embedded broker has no client but Relevo's")
    consumer = consuming.billing(retry=Backoff(attempts=1))
    notes: list[str] = []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        if event.data.note:
            notes.append(event.data.note)
        insert(tx, event.data.order_id, event.data.note)

    for name, body, headers, _ in ODD:
        await consuming.publish_as_stranger(body, [*headers, ("ce_id", name[:50].encode())], name.encode())
    await consuming.publish(*(consuming.order(100 + number, f"k{number}") for number in range(5)))
    async with running(consumer, consuming.store, consuming.broker) as up:
        await consuming.done(lambda: len(effects(consuming.store)) >= 5, up)
    assert sorted(effects(consuming.store)) == [100, 101, 102, 103, 104]
    rows = consuming.store.query(
        "select m.key, k.state, k.error_type, k.reason from relevo_held_key k join relevo_held_message m "
        "on m.held_key = k.key"
    )
    found = {bytes(key).decode(): (state, error_type or "", reason) for key, state, error_type, reason in rows}
    assert set(found) == {name for name, *_ in ODD}
    assert {state for state, _, _ in found.values()} == {"parked"}
    wrong = {name: found[name] for name, *_, error in ODD if not found[name][1].startswith(error)}
    assert wrong == {}
    assert "x\x00y" in notes
    kept = consuming.store.query(
        "select payload from relevo_held_message where held_key = '\\x" + b"not UTF-8".hex() + "'"
    )
    assert bytes(kept[0][0]) == b"\xff\xfe\x00"


async def test_the_inbox_is_purged_beside_running_consumers(consuming: Consuming) -> None:
    """FAILURES row 36. 3,000 old rows go in batches of 50 while the consumer works through 300 messages; nothing inside
    the window is removed, so each of them sent again has no second effect, and nobody saw a deadlock."""
    consumer = consuming.billing(retry=Backoff(attempts=1))

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        insert(tx, event.data.order_id)

    old(consuming, 3000)
    messages = [consuming.order(number, f"k{number % 20}") for number in range(300)]
    database = database_for(consuming.store.settings)
    async with running(consumer, consuming.store, consuming.broker) as up:
        await consuming.publish(*messages)
        settings = Settings(
            database=consuming.store.settings,
            consumer=ConsumerSettings(inbox_window_s=7 * 86_400),
            retention=RetentionSettings(pause_s=0.0, batch=50),
        )
        purged = (await purging.purge(database, settings, ["inbox"], actor="me")).inbox
        await consuming.done(lambda: len(effects(consuming.store)) >= 300, up)
        await consuming.publish(*messages)
        await consuming.settled(up)
    await database.aclose()
    assert purged == 3000
    assert sorted(effects(consuming.store)) == list(range(300))
    assert len(inbox(consuming.store)) == 300 and held(consuming.store) == []
    if consuming.store.is_postgres:
        deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
        assert consuming.store.query(deadlocks) == [(0,)]


def old(consuming: Consuming, count: int) -> None:
    """Inbox rows from a month ago, whose ids say so too."""
    if consuming.store.is_postgres:
        consuming.store.do(
            "insert into relevo_inbox (consumer, event_id, processed_at) select "
            f"'{consuming.consumer}', ('01900000-0000-7' || substr(relevo_uuid7()::text, 16))::uuid, "
            f"clock_timestamp() - interval '30 days' from generate_series(1, {count})"
        )
        return
    consuming.store.do(
        f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {count}) "
        f"insert into relevo_inbox (consumer, event_id, processed_at) select '{consuming.consumer}', "
        "'01900000-0000-7000-8000-' || printf('%012d', i), "
        "cast((julianday('now') - 2440587.5 - 30) * 86400000 as integer) from n"
    )
