"""Health looks at the age of the last success: what hangs without an error is not ready, what is idle is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relevo import Relay
from relevo.outcome import Unconfirmed
from relevo.relay.beside import vitals_of
from relevo.runtime.health import HealthServer
from relevo.settings import BrokerSettings, DatabaseSettings, RelaySettings, Settings
from tests.integration.test_health import _get
from tests.support.relays import sqlite_store
from tests.support.waiting import eventually

LEASE_S = 1.2
QUICK = RelaySettings(lease_s=LEASE_S, send_timeout_s=0.4, poll_max_s=0.2)


@asynccontextmanager
async def _relay(path: Path) -> AsyncIterator[tuple[Relay, Callable[[], None]]]:
    """A relay on SQLite and the embedded broker, and how to append one message."""
    store = sqlite_store(path / "app.db")
    settings = Settings(
        database=DatabaseSettings(url=store.url), broker=BrokerSettings(url=f"embedded:{path}/b.db"), relay=QUICK
    )

    def append() -> None:
        store.do("insert into relevo_add (topic, type, payload) values ('shop', 'shop.sold', '{}')")

    async with Relay(settings) as relay:
        await eventually(lambda: relay.health().ready, what="the relay is ready")
        yield relay, append


async def _never(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


async def test_an_idle_relay_is_ready_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    async with _relay(tmp_path) as (relay, append):
        ages = relay.health().ages
        assert set(ages) == {vital.name for vital in vitals_of(QUICK)} == {"renewal", "poll", "publish", "settle"}
        assert ages["publish"]["age_s"] is None and ages["publish"]["waiting_s"] is None
        assert ages["renewal"]["age_s"] is not None and ages["renewal"]["limit_s"] == LEASE_S
        append()
        await eventually(lambda: relay.health().ages["settle"]["age_s"] is not None, what="it is published and settled")
        await eventually(lambda: relay.health().ages["publish"]["waiting_s"] is None, what="nothing is left to publish")
        begun = asyncio.get_running_loop().time()

        def idle_for_long() -> bool:
            assert relay.health().ready, relay.health().problems
            return asyncio.get_running_loop().time() - begun > 2 * LEASE_S

        await eventually(idle_for_long, what="twice the limit passes without work")


@pytest.mark.parametrize(
    ("name", "hang"),
    [
        ("publish", lambda relay: setattr(relay.engine.publisher, "publish", _never)),
        ("settle", lambda relay: setattr(relay.engine.source, "settle_all", _never)),
        ("poll", lambda relay: setattr(relay.engine.source, "take", _never)),
        ("renewal", lambda relay: setattr(relay.engine.ownership, "tick", _never)),
    ],
)
async def test_what_hangs_without_an_error_is_not_ready_by_name(
    tmp_path: Path, name: str, hang: Callable[[Relay], None]
) -> None:
    """No error is raised and nothing succeeds: the probe gets 503, with the kind of work, its age and its limit."""
    async with _relay(tmp_path) as (relay, append), HealthServer("127.0.0.1", 0, relay.health) as server:
        hang(relay)
        append()
        await eventually(
            lambda: f"success of {name}" in relay.health().problems, what=f"{name} had no success for too long"
        )
        health = relay.health()
        assert health.live and not health.ready
        assert health.problems[f"success of {name}"].startswith("no success")
        status, body = await _get(server.port, "/ready")
        assert status == 503 and f"success of {name}" in body["problems"]
        assert body["ages"][name]["waiting_s"] > body["ages"][name]["limit_s"]
        assert (await _get(server.port, "/live"))[0] == 200
        running = relay._running
        assert running is not None
        running.cancel()  # what hangs here has no clock of its own: the fake stands for a client that ignores its own
        await asyncio.wait([running])
        relay._running = None


async def test_a_broker_that_never_confirms_is_not_ready(tmp_path: Path) -> None:
    """Each send ends, none succeeds: trying again does not make the last success younger."""
    async with _relay(tmp_path) as (relay, append):
        engine = relay.engine
        assert engine is not None
        publish = engine.publisher.publish

        async def unconfirmed(messages: Any) -> Any:
            await asyncio.sleep(0.02)
            return dict.fromkeys(range(len(messages)), Unconfirmed("no answer"))

        engine.publisher.publish = unconfirmed  # type: ignore[method-assign]
        append()
        await eventually(lambda: "success of publish" in relay.health().problems, what="publishing never succeeds")
        engine.publisher.publish = publish  # type: ignore[method-assign]
        await eventually(lambda: relay.health().ready, what="it is ready again by itself")
