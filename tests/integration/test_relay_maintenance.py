"""Retention on the relay's schedule: one owner, followed by another when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest

from relevo.clients import database_for
from relevo.policy import Backoff
from relevo.ports.database import Database
from relevo.relay.chores import Chore
from relevo.relay.maintenance import Maintenance
from relevo.settings import RetentionSettings, Settings
from tests.support.relays import Store
from tests.support.waiting import eventually


@pytest.fixture
async def database(store: Store) -> AsyncIterator[Database]:
    opened = database_for(store.settings)
    yield opened
    await opened.aclose()


def old_rows(store: Store, count: int) -> None:
    store.fill(count)
    ago = (
        "clock_timestamp() - interval '30 days'"
        if store.is_postgres
        else "cast((julianday('now') - 2440587.5 - 30) * 86400000 as integer)"
    )
    store.do(f"update relevo_outbox set settled_at = {ago}, created_at = {ago}, outcome = 'published'")


def of(store: Store, database: Database, *, every_s: float = 3600.0, lease_s: float = 5.0) -> Maintenance:
    settings = Settings(database=store.settings, retention=RetentionSettings(every_s=every_s, batch=10, pause_s=0.0))
    return Maintenance(database, uuid4(), settings, lease_s)


async def test_it_is_done_once_an_hour_by_one_of_them(store: Store, database: Database) -> None:
    """The first relay purges; neither it nor another does again before the hour is over."""
    first, second = of(store, database), of(store, database)
    old_rows(store, 25)
    await first.turn()
    assert store.query("select count(*) from relevo_outbox") == [(0,)]
    old_rows(store, 5)
    for each in (second, first):
        assert 0 < await each.turn() <= 60.0
    assert store.query("select count(*) from relevo_outbox") == [(5,)]
    assert store.query("select holder from relevo_duty where name = 'purge'") == [(None,)]


async def test_a_relay_that_died_in_the_middle_is_followed(store: Store, database: Database) -> None:
    """It took the duty and was never heard of again: when its lease is over, another one purges."""
    old_rows(store, 5)
    dead = of(store, database, lease_s=0.5)
    await dead._renew()
    follower = of(store, database, lease_s=0.5)
    await follower.turn()
    assert store.query("select count(*) from relevo_outbox") == [(5,)]

    async def gone() -> bool:
        await follower.turn()
        return store.query("select count(*) from relevo_outbox") == [(0,)]

    await eventually(gone, what="the follower purged", every_s=0.1)


async def test_never_means_only_by_command(store: Store, database: Database) -> None:
    """``every_s = 0``: relays leave everything alone."""
    old_rows(store, 5)
    await of(store, database, every_s=0.0).turn()
    assert store.query("select count(*) from relevo_outbox") == [(5,)]


async def test_a_chore_that_cannot_work_says_so_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A missing right is an error line the first time, not an exception that ends the relay."""
    turns = 0
    enough = asyncio.Event()

    async def turn() -> float:
        nonlocal turns
        turns += 1
        if turns == 3:
            enough.set()
        raise ValueError("permission denied")

    with caplog.at_level(logging.ERROR, logger="relevo.relay"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("relevo.relay.chores.TROUBLE", Backoff(base=timedelta(milliseconds=1)))
        chore = Chore("purging", turn)
        task = asyncio.create_task(chore.run())
        await asyncio.wait_for(enough.wait(), 5)
        task.cancel()
    assert chore.problem is not None and "permission denied" in chore.problem
    assert [record.getMessage() for record in caplog.records].count(caplog.records[0].getMessage()) == 1
    assert "purging failed" in caplog.text and "permission denied" in caplog.text
