"""How a relay stops: it gives its lanes back, however fast its engine has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relevo import Relay
from relevo.relay.engine import RelayEngine
from relevo.settings import BrokerSettings, RelaySettings, Settings
from tests.support.relays import sqlite_store
from tests.support.waiting import eventually


async def test_an_engine_that_ends_at_once_does_not_cut_the_leaving_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine ends in the very turn of the loop in which the stop is seen, before the rest of the relay sees it."""

    async def run(engine: RelayEngine, stop: asyncio.Event) -> None:
        engine.began = True
        await stop.wait()

    monkeypatch.setattr(RelayEngine, "run", run)
    store = sqlite_store(tmp_path / "a.db")
    settings = Settings(
        database=store.settings,
        broker=BrokerSettings(url=f"embedded:{tmp_path / 'broker.db'}", options={"auto_create": True}),
        relay=RelaySettings(source="mark", lease_s=60.0),
    )
    relay, stop, ready = Relay(settings), asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(relay.run(stop, ready.set))
    await eventually(lambda: ready.is_set() or running.done(), what="it runs")
    held = "select count(*) from relevo_lane where holder is not null"
    assert store.query(held) != [(0,)]
    stop.set()
    await running
    assert store.query(held) == [(0,)]
