"""What a long pause costs the others: nothing that grows with it. On PostgreSQL, by the pages a poll touches."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relevo.catalog import Catalog, pyformat
from relevo.clients import database_for
from relevo.sources.mark.source import MarkSource
from relevo.storage import laning, marking
from tests.support.relays import Store
from tests.support.waiting import eventually

PAUSED = 200_000


@pytest.mark.parametrize("topics", [{"shop.slow"}])
async def test_a_poll_costs_the_same_with_a_paused_backlog(pg_store: Store, topics: set[str]) -> None:
    """200,000 unsettled rows of a paused topic, newest in the table. Once they were passed, a poll of the other topic
    touches some ten pages, finds what is new at once, and finds everything when the topic is resumed."""
    fill(pg_store, "shop.slow", PAUSED)
    database = database_for(pg_store.settings)
    holder = uuid4()
    lanes = await database.run(laning.acquire(holder, range(64), 600.0))
    source = MarkSource(database, holder, 64, lease_s=600.0)
    await source.assign(lanes)
    first = cost(pg_store, source, topics)

    async def passed() -> bool:  # as soon as nothing in the cluster is older than the first look
        assert not await source.take(100, 1_000_000, without_topics=topics)
        return source._floor.seq == PAUSED

    await eventually(passed, what="the backlog was passed", timeout_s=180, every_s=0.2)
    later = cost(pg_store, source, topics)
    assert later < 60, f"a poll touched {later} pages; the first one, which walked the backlog, {first}"
    assert first > 10 * later

    fill(pg_store, "shop.fast", 5)
    fill(pg_store, "shop.slow", 5)
    page = await source.take(100, 1_000_000, without_topics=topics)
    assert [message.topic for message in page.messages] == ["shop.fast"] * 5
    await source.settle(page, {})
    resumed = await source.take(100, 1_000_000)
    assert len(resumed) == 100 and resumed.seqs[0] == 1
    await database.aclose()


async def test_a_late_row_is_not_hidden_behind_a_paused_backlog(pg_store: Store) -> None:
    """A transaction writes before a paused backlog and commits after it was passed, while a transaction elsewhere keeps
    the floor down: its row comes in the next page, before what was written later."""
    database = database_for(pg_store.settings)
    holder = uuid4()
    lanes = await database.run(laning.acquire(holder, range(64), 600.0))
    source = MarkSource(database, holder, 64, lease_s=600.0)
    await source.assign(lanes)
    with psycopg.connect(pg_store.url) as late:
        fill(pg_store, "shop.slow", 300)
        fill_on(late, "shop.fast", 1)
        fill(pg_store, "shop.fast", 1)
        page = await source.take(10, 1_000_000, without_topics={"shop.slow"})
        assert page.seqs == [302]
        late.commit()
        fill(pg_store, "shop.slow", 300)
        fill(pg_store, "shop.fast", 1)
        following = await source.take(10, 1_000_000, without_topics={"shop.slow"})
    assert following.seqs == [301, 603]
    await database.aclose()


def cost(store: Store, source: MarkSource, topics: set[str]) -> int:
    """Pages that the next poll of ``source`` touches, as EXPLAIN counts them: the page and the look before it."""
    catalog = Catalog("postgresql")
    take = marking.take(
        source._holder,
        source._lanes,
        64,
        floor=source._floor.seq,
        after=source._after,
        in_flight=[],
        messages_max=100,
        bytes_max=1_000_000,
        without=topics,
    )
    statements = [next(take), next(marking.horizon("postgresql", source._floor.seq, source._horizon))]
    pages = 0
    with psycopg.connect(store.url) as connection:
        for statement in statements:
            sql = f"explain (analyze, buffers, format json) {pyformat(catalog.text(statement.name))}"
            plan = connection.execute(sql.encode(), statement.params).fetchone()
            assert plan is not None
            root = plan[0][0]["Plan"]
            pages += root["Shared Hit Blocks"] + root["Shared Read Blocks"]
    return pages


def fill(store: Store, topic: str, count: int) -> None:
    with psycopg.connect(store.url) as connection:
        fill_on(connection, topic, count)


def fill_on(connection: psycopg.Connection[Any], topic: str, count: int) -> None:
    connection.execute(
        "insert into relevo_outbox (event_id, bucket, topic, key, type) "
        "select gen_random_uuid(), n %% 1024, %s, %s, 'shop.order.placed' from generate_series(1, %s) as n",
        (topic, b"k", count),
    )
