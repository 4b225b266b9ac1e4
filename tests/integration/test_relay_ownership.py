"""Lanes: shared, taken over, handed over; a zombie changes nothing. On real databases, by the database's clock."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID, uuid4

import pytest

from relevo.clients import database_for
from relevo.ports.source import Disposition
from relevo.relay.ownership import Ownership
from relevo.runtime.clock import Clock
from relevo.sources.mark.source import MarkSource
from relevo.storage import laning
from relevo.storage.sharing import fair_share
from tests.support.relays import FakePublisher, Store, running_relay
from tests.support.waiting import eventually


def owner(store: Store, lease_s: float = 5.0) -> Ownership:
    return Ownership(database_for(store.settings), uuid4(), "test", 64, lease_s, lease_s / 5)


def holders(store: Store) -> dict[str, int]:
    rows = store.query("select holder, count(*) from relevo_lane where holder is not null group by holder")
    return {str(holder): count for holder, count in rows}


def expire(store: Store, ownership: Ownership) -> None:
    """As if a lease had gone by since it was last seen."""
    past = "clock_timestamp() - interval '1 second'" if store.is_postgres else "1"
    for table, column in (("relevo_lane", "holder"), ("relevo_process", "process_id")):
        store.do(f"update {table} set expires_at = {past} where {column} = '{ownership.relay_id}'")


def test_fair_share_covers_every_lane_once_and_moves_only_what_it_must() -> None:
    relays = [UUID(int=number) for number in range(1, 6)]
    shares = [fair_share(relay, relays, 64) for relay in relays]
    assert sorted(lane for share in shares for lane in share) == list(range(64))
    without = [fair_share(relay, relays[:-1], 64) for relay in relays[:-1]]
    for before, after in zip(shares, without, strict=False):
        assert before <= after  # nobody who stays loses a lane when one leaves


async def test_relays_share_the_lanes_and_take_over_after_a_crash(store: Store) -> None:
    """Two relays share; one vanishes without a word; when its lease is over, the other has everything."""
    a, b = owner(store, lease_s=60.0), owner(store, lease_s=60.0)
    await a.tick()
    assert len(a.lanes) == 64
    await b.tick()
    await a.tick()
    assert a.leaving and not b.lanes
    await a.release()
    await b.tick()
    assert len(a.lanes) + len(b.lanes) == 64
    assert not a.lanes.keys() & b.lanes.keys()
    epochs = dict(a.lanes)
    await b.tick()
    assert not a.lanes.keys() & b.lanes.keys()  # it may be alive
    expire(store, a)
    await b.tick()
    assert len(b.lanes) == 64
    assert all(b.lanes[lane] == epoch + 1 for lane, epoch in epochs.items())
    await a.tick()  # the zombie wakes up
    assert not a.lanes
    for ownership in (a, b):
        await ownership.database.aclose()


async def test_may_send_ends_before_the_lease_does(store: Store) -> None:
    """Section 3.7: a relay stops sending at expiry minus the send time-out, by its own clock."""
    now_s = 1000.0
    ownership = owner(store, lease_s=60.0)
    ownership.send_timeout_s, ownership.clock = 5.0, Clock(lambda: now_s)
    await ownership.tick()
    assert ownership.may_send(ownership.lanes)
    assert not ownership.may_send([99])
    now_s += 54.9
    assert ownership.may_send(ownership.lanes)
    now_s += 0.2
    assert not ownership.may_send(ownership.lanes)
    assert holders(store) == {str(ownership.relay_id): 64}
    await ownership.tick()
    assert ownership.may_send(ownership.lanes)
    await ownership.database.aclose()


async def test_a_zombie_settles_nothing_and_reads_nothing(store: Store) -> None:
    """FAILURES row 11: A is frozen beyond its lease while its page is with the broker; B takes over and settles;
    A wakes up: its settle is refused, what it reads is empty."""
    store.fill(50, keys=5)
    a = owner(store, lease_s=0.3)
    await a.tick()
    source = MarkSource(a.database, a.relay_id, 64, lease_s=0.3)
    await source.assign(a.lanes)
    page = await source.take(100, 10**9)
    assert len(page) == 50
    async with running_relay(store) as relay:
        await eventually(lambda: store.unsettled() == 0, what="the new owner settled all")
        assert len(relay.publisher.log) == 50
        settled_at = store.query("select seq, settled_at from relevo_outbox order by seq")
        store.fill(50, keys=5, start=50)
        settled = await source.settle(page, {})
        assert settled.count == 0
        assert set(settled.lost) == set(page.lanes)
        assert not await source.take(100, 10**9)
        assert store.query("select seq, settled_at from relevo_outbox where seq <= 50 order by seq") == settled_at
        await eventually(lambda: store.unsettled() == 0, what="the rest")
        assert len(relay.publisher.log) == 100
    await a.database.aclose()


async def test_a_takeover_waits_for_a_settle_in_progress(pg_store: Store) -> None:
    """HARD 2: the settling transaction locks its lane rows, so no takeover comes between its check and its writes."""
    pg_store.fill(1)
    a = owner(pg_store, lease_s=0.2)
    await a.tick()
    b = owner(pg_store, lease_s=5)
    with contextlib.closing(pg_store.connect()) as settling:
        lanes = settling.execute("select lane from relevo_lane where holder is not null for share").fetchall()
        assert len(lanes) == 64

        async def expired() -> bool:
            rows = pg_store.query("select count(*) from relevo_lane where expires_at > clock_timestamp()")
            return rows == [(0,)]

        await eventually(expired, what="A's leases are over")
        await b.tick()
        assert not b.lanes
        settling.commit()

    async def b_has_all() -> bool:
        await b.tick()
        return len(b.lanes) == 64

    await eventually(b_has_all, what="B takes over once the settle is through")
    for ownership in (a, b):
        await ownership.database.aclose()


async def test_no_transaction_is_open_while_the_broker_is_waited_for(pg_store: Store) -> None:
    """FAILURES row 5: the broker takes its time; pg_stat_activity shows no open transaction of the relay."""
    pg_store.fill(10)
    publisher = FakePublisher(gate=asyncio.Event())
    async with running_relay(pg_store, publisher, tick_s=10):
        await eventually(lambda: publisher.calls == 1, what="the page is with the broker")
        state = "select state from pg_stat_activity where datname = current_database() and application_name = 'relevo'"

        async def all_idle() -> bool:
            return {row[0] for row in pg_store.query(state)} == {"idle"}

        await eventually(all_idle, what="no open transaction")
        assert pg_store.unsettled() == 10
        publisher.gate.set()
        await eventually(lambda: pg_store.unsettled() == 0, what="settled")


async def test_a_database_that_goes_away_is_waited_for(pg_store: Store) -> None:
    """The relay's connections are cut again and again: nothing is lost, order per key is kept, at most repeats."""
    publisher = FakePublisher()

    def cut() -> None:
        pg_store.query(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name = 'relevo'"
        )

    async with running_relay(pg_store, publisher, tick_s=3600, lease_s=60):
        for round_ in range(5):
            await asyncio.to_thread(pg_store.fill, 100, 5, "shop.order", round_ * 100)
            await asyncio.to_thread(cut)
        await eventually(lambda: pg_store.unsettled() == 0, what="all settled")
    firsts: dict[bytes, list[int]] = {}
    seen: set[UUID] = set()
    for message in publisher.log:
        if message.event_id not in seen:
            seen.add(message.event_id)
            firsts.setdefault(message.key or b"", []).append(int(message.payload or b""))
    assert len(seen) == 500
    assert all(numbers == sorted(numbers) for numbers in firsts.values())


@pytest.mark.parametrize("lanes", [1, 7, 64])
def test_one_relay_is_due_everything(lanes: int) -> None:
    me = uuid4()
    assert fair_share(me, [], lanes) == set(range(lanes))


async def test_a_page_read_before_lanes_were_lost_and_won_again_is_not_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAILURES row 11: while A waits for its page, B takes over, parks the key's first message and goes. A has lanes
    again before it looks, not knowing what B held: the page is read again."""
    store.fill(10, keys=1)
    publisher = FakePublisher()
    async with running_relay(store, publisher, tick_s=3600) as relay:
        await eventually(lambda: store.unsettled() == 0, what="it runs")
        source, ownership = relay.engine.source, relay.engine.ownership
        real = source.take
        read, asked = [], asyncio.Event()

        async def late(*arguments: Any, **named: Any) -> Any:
            asked.set()
            taken = await real(*arguments, **named)
            if taken and not read:
                read.extend(taken.seqs)
                await park_first(store, ownership)
                await ownership.tick()
                assert len(ownership.lanes) == 64
            return taken

        monkeypatch.setattr(source, "take", late)
        await asyncio.wait_for(asked.wait(), 30)  # the poll that was under way saw nothing
        store.fill(10, keys=1, start=10)
        await eventually(lambda: store.unsettled() == 0, what="all settled")
    assert len(read) == 10
    assert publisher.payloads() == list(range(10))
    assert store.outcomes() == {"published": 10, "held": 10}


async def test_lanes_won_again_while_a_page_of_theirs_is_under_way_are_kept(store: Store) -> None:
    """FAILURES row 11: the page is of the epoch that was lost, so nothing of it is settled. They are ours at a
    new epoch, and the page goes out again without waiting for a lease."""
    publisher = FakePublisher(gate=asyncio.Event())
    assert publisher.gate is not None
    store.fill(10, keys=1)
    async with running_relay(store, publisher, tick_s=3600, lease_s=3600) as relay:
        await eventually(lambda: publisher.calls > 0, what="a page is with the broker")
        ownership = relay.engine.ownership
        await relay.database.run(laning.release(ownership.relay_id, ownership.lanes))
        await ownership.tick()
        assert len(ownership.lanes) == 64
        publisher.gate.set()
        await eventually(lambda: store.unsettled() == 0, what="all settled")
        assert len(ownership.lanes) == 64
    assert publisher.payloads() == [*range(10), *range(10)]


async def park_first(store: Store, owned: Ownership) -> None:
    """Another relay takes ``owned``'s lanes over, parks the first message there is, and gives the lanes up."""
    database, other = database_for(store.settings), uuid4()
    await database.run(laning.release(owned.relay_id, owned.lanes))
    lanes = await database.run(laning.acquire(other, list(range(64)), 5.0))
    source = store.source(database, other, 5.0)
    await source.assign(lanes)
    taken = await source.take(100, 10**6)
    back = {index: Disposition("back") for index in range(1, len(taken))}
    await source.settle(taken, {0: Disposition("hold", "too large", "too_large"), **back})
    await database.run(laning.release(other, lanes))
    await database.aclose()
