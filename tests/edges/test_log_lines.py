"""What does not go well is in the log, on both sides of the broker, with what an operator needs and nothing secret."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relevo import Backoff, Consumer, Event, Reject, Relay, Retry
from relevo.consumer import ConsumerRunner
from relevo.consumer import reporting as consumer_reporting
from relevo.outcome import Rejected, Unconfirmed
from relevo.relay import reporting as relay_reporting
from relevo.settings import BrokerSettings, DatabaseSettings, RelaySettings, Settings
from relevo.telemetry.often import Often
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually

SECRET = "a-payload-that-must-not-be-logged"


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[logging.LogRecord]]:
    """What Relevo logs in this test, whatever else listens, and whatever was logged in this process before."""
    for module in (consumer_reporting, relay_reporting):
        monkeypatch.setattr(module, "often", Often(module.log))
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]
    logger, level = logging.getLogger("relevo"), logging.getLogger("relevo").level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def _settings(path: Path) -> tuple[Store, Settings]:
    store = sqlite_store(path / "app.db")
    return store, Settings(
        database=DatabaseSettings(url=store.url),
        broker=BrokerSettings(url=f"embedded:{path}/b.db"),
        relay=RelaySettings(lease_s=2.0, send_timeout_s=0.5, poll_max_s=0.2),
    )


async def _append(store: Store, type: str, key: str = "k1") -> None:
    await asyncio.to_thread(
        store.do,
        f"insert into relevo_add (topic, type, key, payload) values ('shop', '{type}', '{key}', '\"{SECRET}\"')",
    )


@asynccontextmanager
async def _consuming(path: Path, consumer: Consumer) -> AsyncIterator[Store]:
    store, settings = _settings(path)
    stop = asyncio.Event()
    async with Relay(settings):
        running = asyncio.create_task(ConsumerRunner(consumer, settings).run(stop))
        yield store
        stop.set()
        await running


def _fails(event: Event) -> None:
    raise ValueError("no such order")


def _rejects(event: Event) -> None:
    raise Reject("never")


def _later(event: Event) -> None:
    raise Retry(0.01, "not yet")


def _found(records: list[logging.LogRecord], level: int, *parts: str) -> Callable[[], Any]:
    return lambda: next(
        (each for each in records if each.levelno == level and all(part in each.getMessage() for part in parts)), None
    )


@pytest.mark.parametrize(
    ("handler", "type", "tried", "parked"),
    [
        (_fails, "shop.sold", "attempt 1 of 2 failed, next try in", "no such order"),
        (_later, "shop.sold", "attempt 1 of 2 failed, next try in", "not yet"),
        (_rejects, "shop.sold", None, "never"),
        (_rejects, "shop.unknown", None, "no handler for the type"),
    ],
    ids=["raises", "asks for later", "rejects", "no handler"],
)
@pytest.mark.parametrize("durable", [False, True], ids=["live", "durable"])
async def test_a_consumer_tells_of_attempts_and_parkings(
    tmp_path: Path,
    records: list[logging.LogRecord],
    handler: Callable[[Event], None],
    type: str,
    tried: str | None,
    parked: str,
    durable: bool,
) -> None:
    """B1: a warning per failed attempt, an error on parking with the command; fields as data; no payload."""
    retry = Backoff(attempts=2, base=timedelta(milliseconds=10))
    consumer = Consumer("billing", topics=["shop"], retry=retry, durable=durable)
    consumer.on("shop.sold")(handler)
    async with _consuming(tmp_path, consumer) as store:
        await _append(store, type)
        error = await eventually(_found(records, logging.ERROR, "is parked", parked), what="the parking is logged")
        fields = vars(error)
        assert (fields["topic"], fields["type"], fields["key"], fields["consumer"]) == ("shop", type, "k1", "billing")
        assert fields["command"] == f"relevo parked show --consumer billing --id {fields['event_id']}"
        assert fields["command"] in error.getMessage()
        if tried is not None:
            warning = _found(records, logging.WARNING, tried)()
            assert vars(warning)["attempt"] == 1 and vars(warning)["attempts_max"] == 2
            assert vars(warning)["event_id"] == fields["event_id"] and vars(warning)["next_try_s"] > 0
        if handler is _fails:
            assert fields["error"] == "ValueError" and fields["place"] == "tests.edges.test_log_lines:_fails"
            assert sum(each.exc_info is not None for each in records) == 1, "the stack trace is written once"
    assert not any(SECRET in str(vars(each)) + each.getMessage() for each in records)


@pytest.mark.parametrize(
    ("policy", "outcome", "level", "part"),
    [
        ("park", Rejected("too_large", "the broker says no"), logging.ERROR, "is parked"),
        ("skip", Rejected("too_large", "the broker says no"), logging.ERROR, "is skipped"),
        ("block", Rejected("too_large", "the broker says no"), logging.ERROR, "is blocked by a rejected message"),
        ("park", Unconfirmed("no answer"), logging.WARNING, "is not confirmed and is sent again"),
    ],
    ids=["parked", "skipped", "blocked", "unconfirmed"],
)
async def test_a_relay_tells_what_the_broker_refused(
    tmp_path: Path, records: list[logging.LogRecord], policy: Any, outcome: Any, level: int, part: str
) -> None:
    store, settings = _settings(tmp_path)
    settings.destinations = {"shop": _destination(policy)}
    async with Relay(settings) as relay:
        engine = relay.engine
        assert engine is not None
        publish = engine.publisher.publish

        async def refuse(messages: Any) -> Any:
            return dict.fromkeys(range(len(messages)), outcome)

        engine.publisher.publish = refuse  # type: ignore[method-assign]
        await _append(store, "shop.sold")
        found = await eventually(_found(records, level, part), what=f"the log says {part}")
        engine.publisher.publish = publish  # type: ignore[method-assign]
    if policy != "block":
        assert vars(found)["topic"] == "shop" and vars(found)["key"] == "k1" and vars(found)["event_id"]
    if part == "is parked":
        assert f"relevo parked show --side relay --id {vars(found)['event_id']}" in found.getMessage()
    assert not any(SECRET in str(vars(each)) + each.getMessage() for each in records)


def _destination(policy: Any) -> Any:
    from relevo.settings import DestinationSettings

    return DestinationSettings(on_rejected=policy)
