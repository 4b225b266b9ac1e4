"""Retention by partitions where published rows have no marker: what every cursor has passed goes, what one has not
passed keeps its partition, and both are looked at again under the lock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from relevo.clients import database_for
from relevo.ops import purge as purging
from relevo.ops.status import status
from relevo.ports.database import Database
from relevo.relay.purging import Purged
from relevo.settings import RelaySettings, RetentionSettings, Settings
from relevo.storage import partitioning
from tests.support.log_stores import LogStore, log_store
from tests.support.relays import FakePublisher, running_relay
from tests.support.waiting import eventually

NAMES = "select name from relevo_outbox_partitions() order by from_seq"
OLD = "clock_timestamp() - interval '30 days'"


@pytest.fixture
def store(pg_database: str) -> LogStore:
    return log_store(pg_database)


@pytest.fixture
async def database(store: LogStore) -> AsyncIterator[Database]:
    opened = database_for(store.settings)
    yield opened
    await opened.aclose()


def settings_of(store: LogStore, days: float = 7.0) -> Settings:
    retention = RetentionSettings(then="partitions", pause_s=0.0, batch=7, outbox_days=days)
    return Settings(database=store.settings, relay=RelaySettings(source="log"), retention=retention)


def names(store: LogStore) -> list[str]:
    return [row[0].removeprefix("relevo_outbox_") for row in store.query(NAMES)]


async def purge(store: LogStore, database: Database, days: float = 7.0) -> Purged:
    return await purging.purge(database, settings_of(store, days), ["partitions"], actor="me")


async def old_day(store: LogStore, database: Database, start: int = 0) -> None:
    """Close a partition of ten old rows."""
    store.fill(10, start=start)
    store.do(f"update relevo_outbox set created_at = {OLD}")
    assert (await purge(store, database, days=9000.0)).cut


async def test_a_partition_goes_when_every_cursor_has_passed_it(store: LogStore, database: Database) -> None:
    """No row has a marker. Unread it stays; read by all lanes it goes; with one cursor behind, it stays again."""
    await old_day(store, database)
    await old_day(store, database, start=10)
    assert {fate.why for fate in (await purge(store, database)).partitions[:2]} == {
        "has messages that are not handed over"
    }
    async with running_relay(store):
        await store.all_over()
    assert store.query("select count(*) from relevo_outbox where settled_at is not null") == [(0,)]
    second = int(store.query("select max(seq) from relevo_outbox")[0][0])
    store.do(f"update relevo_cursor set high_water = {second - 1} where lane = 5")
    fates = {fate.name.removeprefix("relevo_outbox_"): fate.why for fate in (await purge(store, database)).partitions}
    assert "p0" not in names(store) and "p1" in names(store), fates
    report = (await status(database, settings_of(store))).partitions
    assert report[0].unsettled, "status says which"
    store.do(f"update relevo_cursor set high_water = {second} where lane = 5")
    await purge(store, database)
    assert "p1" not in names(store) and store.query("select count(*) from relevo_outbox") == [(0,)]


@pytest.mark.parametrize("behind", ["number", "transaction"])
async def test_the_rule_is_looked_at_under_the_lock(store: LogStore, database: Database, behind: str) -> None:
    """The scan found it settled; by the time of the drop a cursor turns out to stand behind, by its number or by its
    transactions (FAILURES row 1: a row that commits late is not over when its number is)."""
    await old_day(store, database)
    async with running_relay(store):
        await store.all_over()
    saved = store.query("select snapshot, high_water from relevo_cursor where lane = 5")[0]
    if behind == "number":
        store.do("update relevo_cursor set high_water = 9 where lane = 5")
    else:
        store.do("update relevo_cursor set snapshot = (select tx || ':' || tx || ':' from relevo_outbox limit 1)")
    newest = float(store.query("select extract(epoch from max(created_at)) from relevo_outbox")[0][0]) + 1
    assert await database.run(partitioning.drop("relevo_outbox_p0", newest)) == "unsettled"
    store.do(f"update relevo_cursor set snapshot = '{saved[0]}', high_water = {saved[1]}")
    assert await database.run(partitioning.drop("relevo_outbox_p0", newest)) == "dropped"


async def test_a_late_row_keeps_its_partition(store: LogStore, database: Database) -> None:
    """FAILURES row 1: its number was passed before it was committed. Its partition stays until it was read."""
    publisher = FakePublisher()
    with psycopg.connect(store.url) as late:
        store.append(late, b"k", 1000)
        store.fill(10)
        async with running_relay(store, publisher):
            await eventually(lambda: store.unsettled() == 0, what="the cursors stand beyond it")
        late.commit()
    store.do(f"update relevo_outbox set created_at = {OLD}")
    assert (await purge(store, database, days=9000.0)).cut
    await purge(store, database)
    assert "p0" in names(store)
    async with running_relay(store, publisher):
        await eventually(lambda: 1000 in publisher.payloads(), what="the late one is published")
        await store.all_over()
    store.fill(3, start=20)  # cursors are stored with what is settled, so that they see that it has ended
    async with running_relay(store, publisher):
        await store.all_over()
    await purge(store, database)
    assert "p0" not in names(store)
