"""Order and ownership on every stack: real databases and brokers, and what arrived read back through a subscription."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from relevo.ids import bucket_of, uuid7
from relevo.message import Message
from relevo.outcome import PublishOutcome, Unconfirmed
from relevo.policy import Policy
from tests.support.relays import Running, Store
from tests.support.stacks import RABBITMQ, Stack, in_order, numbers
from tests.support.waiting import eventually


async def test_a_foreign_open_transaction_does_not_stop_delivery(stack: Stack) -> None:
    """FAILURES row 6: a session idle in transaction for as long as the test runs; on PostgreSQL with an xid of its own,
    on SQLite with a snapshot (one that writes holds the whole file)."""
    await stack.open()
    with contextlib.closing(stack.store.connect()) as idler:
        if stack.store.is_postgres:
            idler.execute("create table mine (x int)")
        else:
            idler.execute("begin")
            idler.execute("select count(*) from relevo_outbox").fetchall()
        async with stack.relay(batch_max=10):
            stack.store.fill(200, keys=4, topic=stack.topic)
            await settled(stack.store)
        assert in_order(await stack.read(200), 200, 4) == 0


async def test_an_unreadable_row_is_held_and_its_neighbours_go_out(stack: Stack) -> None:
    """FAILURES row 8: one row of a batch cannot be read (written by hand, the checks taken away): the others go out, it
    and what follows of its key are held with the reason."""
    await stack.open()
    store = stack.store
    store.fill(9, keys=3, topic=stack.topic)
    if store.is_postgres:
        store.do("alter table relevo_outbox drop constraint valid")
    with contextlib.closing(store.connect()) as connection:
        if not store.is_postgres:
            connection.execute("pragma ignore_check_constraints = on")
        connection.execute("update relevo_outbox set headers = '[1]' where seq = 2")
        connection.commit()
    async with stack.relay():
        await settled(store)
    found = await stack.read(6)
    assert sorted(numbers(found)) == [0, 2, 3, 5, 6, 8]
    assert numbers(found, b"k0") == [0, 3, 6]
    ((state, code, reason),) = store.query("select state, error_type, reason from relevo_held_key")
    assert (state, code) == ("parked", "unreadable")
    assert "seq 2" in reason
    held = store.query("select payload from relevo_held_message order by position")
    assert [int(bytes(payload)) for (payload,) in held] == [1, 4, 7]


async def test_ten_relays_one_key_and_a_message_that_fails_once(stack: Stack) -> None:
    """FAILURES row 9: ten relays, one key, 1,000 events (fewer on RabbitMQ, where each waits for the one
    before it); one of them is not confirmed at first and goes again, before whatever follows it: they arrive sorted,
    each once."""
    await stack.open()
    count = 300 if stack.name == RABBITMQ else 1000
    stack.store.fill(count, keys=1, topic=stack.topic)
    failed: list[Message] = []

    def once(message: Message) -> PublishOutcome | None:
        if message.payload == b"150" and not failed:
            failed.append(message)
            return Unconfirmed("nothing came back")
        return None

    async with contextlib.AsyncExitStack() as relays:
        for _ in range(10):
            await relays.enter_async_context(stack.relay(once, tick_s=0.1, batch_max=70))
        await settled(stack.store)
    assert len(failed) == 1
    assert numbers(await stack.read(count)) == list(range(count))


async def test_joins_and_leaves_under_load_make_no_duplicate(stack: Stack) -> None:
    """FAILURES row 12: relays join and leave cleanly under load: each event goes out once, keys stay in order."""
    await stack.open()

    async def write() -> None:
        for round_ in range(20):
            await asyncio.to_thread(stack.store.fill, 40, 20, stack.topic, round_ * 40)

    writer = asyncio.create_task(write())
    async with stack.relay(tick_s=0.05, batch_max=20):
        for _ in range(3):
            async with stack.relay(tick_s=0.05, batch_max=20):
                await eventually(lambda: owners(stack.store) == 2, what="both own lanes", timeout_s=40)
        await writer
        await settled(stack.store)
    assert in_order(await stack.read(800), 800, 20) == 0


async def test_other_keys_and_relays_go_on_while_rows_are_locked(pg_stack: Stack) -> None:
    """FAILURES row 13: a writer holds its rows, uncommitted, and the locks of its business rows; somebody else holds a
    lane, as a relay does that stands still while it takes one over. All other keys are delivered and settled by the
    other relay; what was locked follows when it is free."""
    stack, store = pg_stack, pg_stack.store
    await stack.open()
    store.do("create table account (name text primary key)")
    store.do("insert into account values ('a')")
    store.fill(60, keys=6, topic=stack.topic)
    lane = bucket_of(b"stuck", uuid7()) % 64
    assert lane not in {bucket_of(b"k%d" % number, uuid7()) % 64 for number in range(6)}
    with contextlib.closing(store.connect()) as writer, contextlib.closing(store.connect()) as frozen:
        writer.execute("select * from account for update")
        store.append(writer, b"stuck", 1, stack.topic)
        frozen.execute(f"select * from relevo_lane where lane = {lane} for update")
        async with stack.relay(), stack.relay():
            await settled(store)
            assert in_order(await stack.read(60), 60, 6) == 0
            writer.commit()
            frozen.commit()
            await settled(store)
    (last,) = await stack.read(1)
    assert (last.key, last.payload) == (b"stuck", b"1")


async def test_a_foreign_lock_on_a_sent_row_keeps_nobody_waiting(pg_stack: Stack) -> None:
    """FAILURES row 13: somebody's forgotten ``select … for update`` holds rows of the outbox. The one relay there is
    goes on with everything; they are marked when they are free, and nothing is sent again."""
    stack, store = pg_stack, pg_stack.store
    await stack.open()
    store.fill(60, keys=6, topic=stack.topic)
    with contextlib.closing(store.connect()) as frozen:
        frozen.execute("select * from relevo_outbox where seq in (1, 2, 40) for update")
        async with stack.relay() as relay:
            await eventually(lambda: store.unsettled() == 3, what="all but the locked settled", timeout_s=60)
            store.fill(60, keys=6, topic=stack.topic, start=60)
            await eventually(lambda: store.unsettled() == 3, what="the later ones settled", timeout_s=60)
            frozen.commit()
            await settled(store)
            assert len(relay.publisher.log) == 120
    assert in_order(await stack.read(120), 120, 6) == 0
    assert store.query("select outcome, count(*) from relevo_outbox group by 1") == [("published", 120)]


async def test_a_foreign_lock_on_a_refused_row(pg_stack: Stack) -> None:
    """The same with rows whose key is to be parked: the other keys flow, this one stands and is parked whole when the
    lock is gone."""
    stack, store = pg_stack, pg_stack.store
    await stack.open()
    stack.limit(5_000)
    store.fill(30, keys=3, topic=stack.topic)
    enlarge(store, 1, 20_000)
    with contextlib.closing(store.connect()) as frozen:
        frozen.execute("select * from relevo_outbox where seq in (1, 7) for update")
        async with stack.relay():
            await eventually(lambda: store.unsettled() == 10, what="the other keys settled", timeout_s=60)
            store.fill(30, keys=3, topic=stack.topic, start=30)
            await eventually(lambda: store.unsettled() == 20, what="their later ones settled", timeout_s=60)
            frozen.commit()
            await settled(store)
    found = await stack.read(40)
    assert [numbers(found, b"k%d" % key) for key in range(3)] == [[], list(range(1, 60, 3)), list(range(2, 60, 3))]
    held = store.query("select payload from relevo_held_message order by position")
    assert [int(bytes(payload)) for (payload,) in held] == list(range(0, 60, 3))


async def test_three_relays_starting_at_once_send_each_event_once(stack: Stack) -> None:
    """FAILURES row 14: three relays start together on what a crash left behind: once each, in order per key."""
    await stack.open()
    stack.store.fill(900, keys=30, topic=stack.topic)
    relays: list[Running] = []
    async with contextlib.AsyncExitStack() as running:
        for _ in range(3):
            relays.append(await running.enter_async_context(stack.relay(tick_s=0.05)))
        await settled(stack.store)
        assert sum(len(relay.publisher.log) for relay in relays) == 900
    assert in_order(await stack.read(900), 900, 30) == 0


@pytest.mark.parametrize("policy", ["park", "skip"])
async def test_a_message_the_broker_refuses_for_its_size(stack: Stack, policy: str) -> None:
    """FAILURES rows 10 and 15: 1, 2 and 3 of a key are sent together, and the broker takes no message of that size: 2
    and 3 are not let past it. Parked: its key says why, with what waits behind, later arrivals too; skipped: they go.
    The other keys flow."""
    await stack.open()
    stack.limit(5_000)
    store = stack.store
    store.fill(30, keys=3, topic=stack.topic)
    enlarge(store, 1, 20_000)
    async with stack.relay(policy=Policy(on_rejected=policy)):  # type: ignore[arg-type]
        await settled(store)
        store.fill(30, keys=3, topic=stack.topic, start=30)
        await settled(store)
    found = await stack.read(40 if policy == "park" else 59)
    first = list(range(0, 60, 3))
    assert numbers(found, b"k0") == ([] if policy == "park" else first[1:])
    assert numbers(found, b"k1") == list(range(1, 60, 3))
    assert numbers(found, b"k2") == list(range(2, 60, 3))
    held = store.query("select payload from relevo_held_message order by position")
    assert [int(bytes(payload)) for (payload,) in held] == (first if policy == "park" else [])
    keys = store.query("select state, error_type from relevo_held_key")
    assert keys == ([("parked", "message_too_large")] if policy == "park" else [])
    outcomes = dict(store.query("select outcome, count(*) from relevo_outbox group by outcome"))
    assert outcomes == ({"published": 40, "held": 20} if policy == "park" else {"published": 59, "skipped": 1})


def enlarge(store: Store, seq: int, size: int) -> None:
    """The payload of the first row is the same number, and many blanks."""
    with contextlib.closing(store.connect()) as connection:
        mark = "%s" if store.is_postgres else "?"
        connection.execute(f"update relevo_outbox set payload = {mark} where seq = {mark}", (b"0" + b" " * size, seq))
        connection.commit()


def owners(store: Store) -> int:
    return int(store.query("select count(distinct holder) from relevo_lane where holder is not null")[0][0])


async def settled(store: Store) -> None:
    await eventually(lambda: store.unsettled() == 0, what="all settled", timeout_s=60, every_s=0.05)
