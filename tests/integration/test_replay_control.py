"""Replays and what people do beside them: pauses, cancelling, old transactions, what failed and was mended."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID

import pytest

from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.errors import RefusedError, StillRunningError
from relevo.ops import jobs, pauses
from relevo.ops.replay import Replays
from relevo.ops.replay_sources import Selection
from relevo.ops.replay_turn import Report
from tests.integration.test_replay import ORDERS, Shop, shop  # noqa: F401
from tests.support.waiting import eventually

PATIENCE_S = 60.0


async def begun(shop: Shop, replays: Replays, mode: Any = "again", rate: float | None = None, **chosen: Any) -> UUID:  # noqa: F811
    selection = Selection(topics=(), **({"from_seq": 1} | chosen))
    plan = await replays.plan(selection, mode)
    return await replays.start(selection, plan, mode=mode, why="w", actor="ann", rate=rate)


async def handled_once(shop: Shop, count: int = ORDERS, *, keys: int = 4) -> None:  # noqa: F811
    shop.add(range(count), keys=keys)
    async with shop.live():
        await shop.all_done(count)
        await eventually(lambda: shop.store.unsettled() == 0, what="all is settled", timeout_s=PATIENCE_S)
    shop.runs.clear()


async def paused(shop: Shop, act: Any, kind: Any, name: str, **more: Any) -> None:  # noqa: F811
    database = database_for(shop.store.settings)
    try:
        target = pauses.target(kind, name, **more)
        assert await pauses.change(database, target, act=act, who="ann", why="stock-taking")
    finally:
        await database.aclose()


@pytest.mark.parametrize("kind", ["consumer", "topic", "key"])
async def test_it_waits_visibly_for_what_is_paused(shop: Shop, kind: str) -> None:  # noqa: F811
    """FAILURES row 41. A paused consumer, topic or key: nothing of the page runs, the report says what it waits for and
    who paused it, no key is held meanwhile; resumed, it goes on by itself to the end."""
    await handled_once(shop)
    more = {"topic": shop.topic, "consumer": "billing"} if kind == "key" else {}
    name = {"consumer": "billing", "topic": shop.topic, "key": "k1"}[kind]
    await paused(shop, "pause", kind, name, **more)
    reports: list[str | None] = []
    async with Replays(shop.settings, shop.billing) as replays:
        job = await begun(shop, replays)
        task = asyncio.create_task(replays.run(job, asyncio.Event(), lambda report: reports.append(report.waits_for)))
        await eventually(lambda: reports, what="it says that it waits", timeout_s=PATIENCE_S)
        assert reports == [f"{kind} {name} is paused by ann: stock-taking"]
        assert shop.runs == [] and shop.store.query("select 1 from relevo_held_key") == []
        await paused(shop, "resume", kind, name, **more)
        report = await task
    assert (report.state, report.handled, report.waits_for) == ("done", ORDERS, None) and None in reports


async def test_into_waits_for_a_paused_destination_and_can_be_stopped_there(shop: Shop) -> None:  # noqa: F811
    """Nothing is sent to a paused destination; a stop is honoured while waiting, and the job goes on after it."""
    await handled_once(shop)
    target = f"{shop.topic}.copy"
    await broker_for(shop.settings.broker.url).ensure_topics([target])
    await paused(shop, "pause", "destination", target)
    selection = Selection(topics=(shop.topic,), from_seq=1, into=target)
    async with Replays(shop.settings, None) as replays:
        plan = await replays.plan(selection, "into")
        job = await replays.start(selection, plan, mode="into", why="w", actor="ann")
        stop = asyncio.Event()
        waits: list[Report] = []

        def tell(report: Report) -> None:
            if report.waits_for:
                waits.append(report)
                stop.set()

        report = await replays.run(job, stop, tell)
        assert (report.state, report.handled, len(waits)) == ("paused", 0, 1)
        await paused(shop, "resume", "destination", target)
        assert (await replays.run(job, asyncio.Event())).handled == ORDERS


async def test_a_cancelled_again_leaves_every_key_live_or_names_it(shop: Shop) -> None:  # noqa: F811
    """Cancelled in the middle, with an arrival behind one held key: the keys without arrivals are live at once, that
    one is named, and is live when the consumer has worked it off; the job cannot be resumed, nothing is kept for it."""
    await handled_once(shop)
    async with Replays(shop.settings, shop.billing) as replays:
        job = await begun(shop, replays, rate=4.0)
        task = asyncio.create_task(replays.run(job, asyncio.Event()))
        await eventually(lambda: len(shop.runs) >= 4, what="the first page ran", timeout_s=PATIENCE_S)
        held = shop.store.query("select key from relevo_held_key")
        assert len(held) == 4
        shop.store.do(_arrival(shop))
        database = database_for(shop.store.settings)
        cancelled = await jobs.cancel(database, job, actor="bob", reason="the wrong day")
        assert cancelled.held_keys == [f"{shop.topic}/k0"] and cancelled.consumer == "billing"
        report = await task
        assert report.state == "cancelled" and report.handled < ORDERS
        assert [bytes(row[0]) for row in shop.store.query("select key from relevo_held_key")] == [b"k0"]
        with pytest.raises(RefusedError, match="is cancelled"):
            await replays.run(job, asyncio.Event())
        with pytest.raises(RefusedError, match="is cancelled already"):
            await jobs.cancel(database, job, actor="bob", reason="")
        await database.aclose()
    assert shop.store.query("select count(*) from relevo_keep") == [(0,)]
    async with shop.live():
        await eventually(
            lambda: shop.store.query("select 1 from relevo_held_key") == [], what="live", timeout_s=PATIENCE_S
        )
    actions = [row[0] for row in shop.store.query("select action from relevo_audit order by audit_id")]
    assert actions == ["replay.again", "job.cancel"]


def _arrival(shop: Shop) -> str:  # noqa: F811
    """A message that was queued behind the key k0, as a live consumer does it; it is one the inbox knows."""
    return (
        "insert into relevo_held_message (side, consumer, topic, held_key, event_id, position, shard, bucket, kind, "
        "key, type, schema_version, payload, content_type, created_at) select 'consumer', 'billing', topic, key, "
        "event_id, 1000000, '', bucket, kind, key, type, schema_version, payload, content_type, created_at "
        f"from relevo_outbox where topic = '{shop.topic}' and seq = 1"
    )


async def test_an_old_transaction_is_named_and_not_waited_for_without_end(shop: Shop) -> None:  # noqa: F811
    """*again* on PostgreSQL waits for transactions that had found a key live. One that does not end: after the time-out
    the replay stops with its pid, no key stays held, and it can be resumed when that session is gone."""
    if not shop.store.is_postgres:
        pytest.skip("one writer at a time: there is nothing to wait for")
    await handled_once(shop, 4)
    async with Replays(shop.settings, shop.billing, fence_timeout_s=0.2) as replays:
        job = await begun(shop, replays)
        with contextlib.closing(shop.store.connect()) as slow:
            slow.execute("select * from relevo_held_key where consumer = 'billing' for update")
            pid = slow.info.backend_pid
            with pytest.raises(StillRunningError, match=rf"pid {pid} \(idle in transaction, for \d+ s, user relevo"):
                await replays.run(job, asyncio.Event())
            slow.rollback()
        assert shop.runs == [] and shop.store.query("select 1 from relevo_held_key") == []
        assert shop.store.query("select state from relevo_job") == [("paused",)]
        assert (await replays.run(job, asyncio.Event())).handled == 4


@pytest.mark.parametrize("mode", ["repair", "again"])
async def test_what_was_applied_is_not_applied_again_after_the_mend(shop: Shop, mode: str) -> None:  # noqa: F811
    """One message fails, its key's later ones are left out. After the mend the replay is resumed: only what had failed
    runs, and each message was handled exactly once in this replay; the count ends at the total."""
    await handled_once(shop)
    shop.broken = {6}
    async with Replays(shop.settings, shop.billing) as replays:
        job = await begun(shop, replays, mode)
        first = await replays.run(job, asyncio.Event())
        behind = list(range(6, ORDERS, 4))
        assert (first.state, first.failed, first.handled) == ("failed", len(behind), ORDERS - len(behind))
        shop.broken = set()
        shop.runs.clear()
        second = await replays.run(job, asyncio.Event())
    assert (second.state, second.handled, second.done, second.failed) == ("done", len(behind), ORDERS, 0)
    assert [number for _, number, _ in shop.runs] == behind
    assert shop.store.query("select count(*) from relevo_replay_failure") == [(0,)]


async def test_a_repair_that_lost_its_position_applies_nothing_twice(shop: Shop) -> None:  # noqa: F811
    """A page was handled and its position not stored, as after a kill: resumed, the page is read again and known."""
    await handled_once(shop)
    async with Replays(shop.settings, shop.billing) as replays:
        job = await begun(shop, replays, "repair")
        assert (await replays.run(job, asyncio.Event())).handled == ORDERS
        shop.store.do("update relevo_job set state = 'paused', done = 0, cursor = '{}'")
        again = await replays.run(job, asyncio.Event())
    assert (again.state, again.handled, again.skipped, again.done) == ("done", 0, ORDERS, ORDERS)
    assert sorted(number for _, number, _ in shop.runs) == list(range(ORDERS))
