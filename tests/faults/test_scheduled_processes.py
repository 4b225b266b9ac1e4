"""Scheduled messages and real relay processes that are killed while they move them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from relevo import Outbox
from tests.support.events import OrderPlaced
from tests.support.relay_processes import Relays
from tests.support.relays import Store
from tests.support.stacks import Stack
from tests.support.waiting import eventually, eventually_sync

outbox = Outbox()


@pytest.fixture
async def relays(store: Store, tmp_path: Path) -> AsyncIterator[Relays]:
    """On both databases, with the embedded broker and the topic of the event."""
    started = Relays(Stack("embedded", store, f"embedded:{tmp_path / 'broker.db'}", topic="shop.order"), tmp_path)
    await started.open()
    try:
        yield started
    finally:
        started.end()


@pytest.mark.parametrize(("probe", "moved"), [("mover.inserted", False), ("mover.committed", True)])
async def test_a_message_due_after_a_crash_goes_out_once(relays: Relays, probe: str, moved: bool) -> None:
    """Scheduled out of order, the mover killed before or after its commit: each message goes out once, in the order in
    which they were due, and it is nowhere twice in between."""
    store = relays.store
    ids = schedule(store, [timedelta(seconds=-1), timedelta(seconds=-3), timedelta(seconds=-2)])
    first = relays.start(f"{probe}=kill:1")
    eventually_sync(lambda: first.poll() is not None, what="the relay met its probe")
    assert first.returncode == -signal.SIGKILL
    assert f"probe {probe}: SIGKILL" in relays.log(0).read_text()
    assert counts(store) == ((0, 3) if moved else (3, 0))
    relays.start()
    await eventually(lambda: counts(store) == (0, 3) and store.unsettled() == 0, what="the next relay sent them")
    sent = [message.event_id for message in await relays.on_the_wire(3)]
    assert sent == [ids[1], ids[2], ids[0]]
    in_outbox = store.query("select event_id from relevo_outbox order by seq")
    assert [UUID(str(row[0])) for row in in_outbox] == sent


async def test_not_before_its_time_and_not_if_cancelled(relays: Relays) -> None:
    """One is due in a second, one was cancelled, one is due tomorrow: the first goes out after its time by the
    database's clock, and the last stays."""
    store = relays.store
    with contextlib.closing(store.connect()) as connection:
        soon = outbox.add(connection, OrderPlaced(1), after=timedelta(seconds=1))
        gone = outbox.add(connection, OrderPlaced(1), after=timedelta(seconds=1))
        outbox.add(connection, OrderPlaced(1), after=timedelta(days=1))
        connection.commit()
        assert outbox.cancel(connection, gone)
        connection.commit()
    due = store.query("select min(due_at) from relevo_scheduled")[0][0]
    relays.start()
    await eventually(lambda: counts(store) == (1, 1) and store.unsettled() == 0, what="the first was sent")
    assert [message.event_id for message in await relays.on_the_wire(1)] == [soon]
    assert store.query("select created_at from relevo_outbox")[0][0] >= due


def schedule(store: Store, offsets: list[timedelta]) -> list[UUID]:
    with contextlib.closing(store.connect()) as connection:
        now = datetime.now(UTC)
        ids = [outbox.add(connection, OrderPlaced(1), at=now + offset) for offset in offsets]
        connection.commit()
    return ids


def counts(store: Store) -> tuple[int, int]:
    """Scheduled, in the outbox."""
    return (
        store.query("select count(*) from relevo_scheduled")[0][0],
        store.query("select count(*) from relevo_outbox")[0][0],
    )
