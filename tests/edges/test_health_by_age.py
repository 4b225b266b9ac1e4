"""Health looks at the age of the last success: what hangs without an error is not ready, what is idle is."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from relevo import Consumer, Event, Relay
from relevo.cli.database import on_database
from relevo.cli.status_table import render
from relevo.consumer import ConsumerRunner, runs
from relevo.consumer.health import vitals_of as vitals_of_consumer
from relevo.errors import UnreachableError
from relevo.ops.status import status
from relevo.ops.status_report import Status
from relevo.outcome import Unconfirmed
from relevo.relay.beside import vitals_of
from relevo.runtime.health import HealthServer
from relevo.settings import BrokerSettings, ConsumerSettings, DatabaseSettings, RelaySettings, Settings
from tests.integration.test_health import _get
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually

LEASE_S = 1.2
QUICK = RelaySettings(lease_s=LEASE_S, send_timeout_s=0.4, poll_max_s=0.2)


@asynccontextmanager
async def _relay(path: Path) -> AsyncIterator[tuple[Relay, Callable[[], Awaitable[None]]]]:
    """A relay on SQLite and the embedded broker, and how to append one message."""
    store = sqlite_store(path / "app.db")
    settings = Settings(
        database=DatabaseSettings(url=store.url), broker=BrokerSettings(url=f"embedded:{path}/b.db"), relay=QUICK
    )

    async def append() -> None:
        await asyncio.to_thread(
            store.do, "insert into relevo_add (topic, type, payload) values ('shop', 'shop.sold', '{}')"
        )

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
        await append()
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
        await append()
        await eventually(
            lambda: f"success of {name}" in relay.health().problems, what=f"{name} had no success for too long"
        )
        health = relay.health()
        assert health.live and not health.ready
        assert health.problems[f"success of {name}"].startswith("no success")
        status, body = await _get(server.port, "/ready")
        assert status == 503 and f"success of {name}" in body["problems"]
        assert body["ages"][name]["waiting_s"] >= body["ages"][name]["limit_s"]
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
        await append()
        await eventually(lambda: "success of publish" in relay.health().problems, what="publishing never succeeds")
        engine.publisher.publish = publish  # type: ignore[method-assign]
        await eventually(lambda: relay.health().ready, what="it is ready again by itself")


@asynccontextmanager
async def _consumer(
    path: Path, consumer: Consumer
) -> AsyncIterator[tuple[ConsumerRunner, Callable[[], Awaitable[None]], Store]]:
    """A consumer with a lease of 1.2 s, a relay beside it, and how to append one message."""
    store = sqlite_store(path / "app.db")
    settings = Settings(
        database=DatabaseSettings(url=store.url),
        broker=BrokerSettings(url=f"embedded:{path}/b.db"),
        relay=QUICK,
        consumer=ConsumerSettings(lease_s=LEASE_S, stop_timeout_s=2.0),
    )

    async def append() -> None:
        await asyncio.to_thread(
            store.do, "insert into relevo_add (topic, type, payload) values ('shop', 'shop.sold', '{}')"
        )

    runner, stop = ConsumerRunner(consumer, settings), asyncio.Event()
    async with Relay(settings):
        running = asyncio.create_task(runner.run(stop))
        try:
            await append()  # the topic is there from now on
            await eventually(lambda: runner.health().ready, what="the consumer is ready")
            yield runner, append, store
        finally:
            stop.set()
            await asyncio.wait([running], timeout=5)
            running.cancel()
            await asyncio.wait([running], timeout=5)


def _declared(handler: Callable[[Event], Any] | None = None) -> Consumer:
    consumer = Consumer("billing", topics=["shop"])

    @consumer.on("shop.sold")
    async def sold(event: Event) -> None:
        if handler is not None:
            await handler(event)

    return consumer


def _parts(runner: ConsumerRunner) -> Any:
    """The engine's intake, whose subscription and journal a test replaces."""
    return runner._engines[0]._intake


async def test_an_idle_consumer_is_ready_and_its_ages_are_named(tmp_path: Path) -> None:
    async with _consumer(tmp_path, _declared()) as (runner, _, _store):
        await eventually(lambda: runner.health().ages["billing/settle"]["age_s"] is not None, what="one was settled")
        ages = runner.health().ages
        assert set(ages) == {f"billing/{vital.name}" for vital in vitals_of_consumer(LEASE_S)}
        begun = asyncio.get_running_loop().time()

        def idle_for_long() -> bool:
            assert runner.health().ready, runner.health().problems
            return asyncio.get_running_loop().time() - begun > 2 * LEASE_S

        await eventually(idle_for_long, what="twice the limit passes without a message")


@pytest.mark.parametrize(
    ("name", "hang"),
    [
        ("poll", lambda intake: setattr(intake._subscription, "take", _never)),
        ("settle", lambda intake: setattr(intake._subscription, "settle", _never)),
        ("broker", lambda intake: setattr(intake._subscription, "lag", _never)),
        ("journal", lambda intake: setattr(intake._shared.journal, "taken", _never)),
        ("renewal", lambda intake: setattr(intake._shared.database, "run", _never)),
    ],
)
async def test_a_consumer_that_hangs_without_an_error_is_not_ready_by_name(
    tmp_path: Path, name: str, hang: Callable[[Any], None]
) -> None:
    async with _consumer(tmp_path, _declared()) as (runner, append, _store):
        hang(_parts(runner))
        await append()
        problem = f"billing/success of {name}"
        await eventually(lambda: problem in runner.health().problems, what=f"{name} had no success for too long")
        health = runner.health()
        assert not health.ready and health.live
        assert health.ages[f"billing/{name}"]["waiting_s"] >= LEASE_S


async def test_lag_is_unknown_where_it_is_not_known(tmp_path: Path) -> None:
    """B15: a consumer whose broker does not answer, or that has no partition, has no lag of 0: in health, in the row,
    in ``status``."""
    async with _consumer(tmp_path, _declared()) as (runner, _, store):
        await eventually(lambda: runner.health().detail["billing"]["lag"] is not None, what="the lag is known")

        async def away() -> Any:
            raise UnreachableError("the broker is away")

        _parts(runner)._subscription.lag = away
        await eventually(lambda: runner.health().detail["billing"]["lag"] is None, what="the lag is unknown")
        await eventually(lambda: _line(store).lag is None, what="status does not know it either")

        async def nothing() -> Any:
            return {}

        _parts(runner)._subscription.lag = nothing
        waits = lambda: runner.health().detail["billing"]["waits_for"] or ""  # noqa: E731
        await eventually(lambda: "waiting for the group to rebalance" in waits(), what="it says what it waits for")
        assert runner.health().detail["billing"]["lag"] is None
        await eventually(lambda: "rebalance" in (_line(store).waits_for or ""), what="status says it")
        assert "billing/success of broker" not in runner.health().problems, "to have nothing is not to be sick"


async def test_status_shows_a_consumers_trouble_and_the_ages(tmp_path: Path) -> None:
    async with _consumer(tmp_path, _declared()) as (runner, _, store):

        async def refused(*_: Any) -> Any:
            raise UnreachableError("no leader")

        _parts(runner)._subscription.take = refused
        await eventually(lambda: "no leader" in _line(store).problems.get("broker", ""), what="status shows it")
        line = _line(store)
        assert set(line.ages) == {vital.name for vital in vitals_of_consumer(LEASE_S)}
        _parts(runner)._subscription.notices = ["shop/0: 5 positions, 3 to 7, are gone"]
        await eventually(lambda: _line(store).notices, what="status shows the broker's warnings")
        assert runner.health().detail["billing"]["notices"] == ["shop/0: 5 positions, 3 to 7, are gone"]
        with io.StringIO() as text:
            Console(file=text, width=500).print(render(_read(store)))
            shown = text.getvalue()
        assert "no leader" in shown and "last successes" in shown and "renewal" in shown


async def test_a_handler_that_runs_long_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LONG_S", 0.2)
    monkeypatch.setattr(runs.Runs.under_way, "__defaults__", (0.2,))
    release = asyncio.Event()

    async def slow(event: Event) -> None:
        await release.wait()

    async with _consumer(tmp_path, _declared(slow)) as (runner, _, _store):
        found = await eventually(lambda: runner.health().detail["billing"]["running"], what="the handler is shown")
        assert found[0]["handler"].endswith("sold") and len(found[0]["event_id"]) == 36 and found[0]["seconds"] >= 0.2
        release.set()
        await eventually(lambda: not runner.health().detail["billing"]["running"], what="it has ended")


def _report(store: Store) -> Status:
    settings = Settings(database=DatabaseSettings(url=store.url))
    return on_database(settings, lambda database: status(database, settings))


def _line(store: Store) -> Any:
    """What ``status`` says of the consumer."""
    return _read(store).consumers[0]


def _read(store: Store) -> Status:
    """On a loop of its own, in a thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_report, store).result()
