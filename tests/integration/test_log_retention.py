"""What may go from an outbox that is read by position: what every cursor has passed, by number *and* transaction."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from relevo.clients import database_for
from relevo.ops import purge as purging
from relevo.ops.status import status
from relevo.settings import RelaySettings, RetentionSettings, Settings
from relevo.storage import replaying
from tests.support.log_stores import LogStore, log_store
from tests.support.relays import FakePublisher, running_relay
from tests.support.waiting import eventually


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    return log_store(tmp_path / "app.db" if request.param == "sqlite" else request.getfixturevalue("pg_database"))


def settings_of(store: LogStore) -> Settings:
    return Settings(
        database=store.settings,
        relay=RelaySettings(source="log"),
        retention=RetentionSettings(outbox_days=7, pause_s=0.0),
    )


def make_old(store: LogStore) -> None:
    old = (
        "clock_timestamp() - interval '30 days'"
        if store.is_postgres
        else "cast((julianday('now') - 2440587.5 - 30) * 86400000 as integer)"
    )
    store.do(f"update relevo_outbox set created_at = {old}")


async def purged(store: LogStore) -> int:
    database = database_for(store.settings)
    try:
        return (await purging.purge(database, settings_of(store), ["outbox"], actor="me")).outbox
    finally:
        await database.aclose()


async def test_what_was_published_goes_and_what_waits_stays(store: LogStore) -> None:
    """No row has a marker; the cursors say what is over. Status counts what waits, and a replay finds what was
    published, by them too."""
    store.fill(30)
    make_old(store)
    assert await purged(store) == 0
    async with running_relay(store):
        await store.all_over()
    store.fill(5, start=30)
    make_old(store)
    database = database_for(store.settings)
    try:
        pending = (await status(database, settings_of(store))).pending
        window = replaying.Window(topics=("shop.order",), after=0, to_seq=99)
        assert await database.run(replaying.count(window)) == {"shop.order.placed": 30}
        assert len(await database.run(replaying.page(window, 10, 100))) == 20
    finally:
        await database.aclose()
    assert pending.count == 5 and (pending.oldest_age_s or 0) > 86_400
    assert await purged(store) == 30
    assert [row[0] for row in store.query("select seq from relevo_outbox order by seq")] == [31, 32, 33, 34, 35]


async def test_on_a_quiet_system_retention_learns_that_a_transaction_has_ended(pg_database: str) -> None:
    """Some transaction of the cluster ran when the last event was settled. It ends; nothing more is written; what was
    published can go all the same, a few seconds later."""
    store = log_store(pg_database)
    with psycopg.connect(store.url) as other:
        other.execute("select pg_current_xact_id()")
        store.fill(10)
        async with running_relay(store):
            await eventually(lambda: store.unsettled() == 0, what="all settled")
            make_old(store)
            assert await purged(store) == 0
            other.commit()
            await store.all_over()
    assert await purged(store) == 10


async def test_a_row_that_commits_late_is_not_over_when_its_number_is(pg_database: str) -> None:
    """FAILURES row 1 for retention: the cursor stands beyond the number of a row whose transaction it has not seen. By
    ``seq <= hw`` alone that row would go unread."""
    store, publisher = log_store(pg_database), FakePublisher()
    with psycopg.connect(store.url) as late:
        store.append(late, b"k", 1)
        store.fill(10, start=10)
        async with running_relay(store, publisher):
            await eventually(lambda: len(publisher.log) == 10, what="the others are published")
            await eventually(lambda: store.unsettled() == 0, what="the cursors stand beyond it")
        late.commit()
    make_old(store)
    await purged(store)
    assert (1,) in store.query("select seq from relevo_outbox")
    async with running_relay(store, publisher):
        await eventually(lambda: 1 in publisher.payloads(), what="the late one is published")
        await store.all_over()
    assert await purged(store) > 0
    assert store.query("select count(*) from relevo_outbox") == [(0,)]
