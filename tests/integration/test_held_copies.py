"""What is held is the original, byte for byte; why it is held stands beside it."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from relevo import Backoff, Consumer, Event, Outbox
from relevo.ids import uuid7
from relevo.message import Message
from relevo.outcome import Rejected
from tests.support.consumers import order, running, settled
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import FakePublisher, Store, running_relay
from tests.support.waiting import eventually

ODD: list[dict[str, Any]] = [
    {"payload": None, "key": None, "headers": {}},
    {"payload": b"", "key": b"", "headers": {"x": ""}},
    {"payload": b"null", "key": b"null", "headers": {"x": "null"}},
    {"payload": bytes(range(256)), "key": bytes(range(255, -1, -1)), "headers": {"x-name": "Grüße, 東京 🐘"}},
    {"payload": b'{"a": 1}', "key": "schlüssel".encode(), "headers": {"traceparent": "00-" + "a" * 32}},
]


def odd(number: int) -> Message:
    message = order(number)
    return msgspec.structs.replace(
        message,
        event_id=uuid7(),
        content_type="application/x-test",
        schema_version=7,
        aggregate_type="kind",
        aggregate_id="id",
        aggregate_version=2**40,
        **ODD[number],
    )


COLUMNS = (
    "event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version, payload, "
    "content_type, headers, created_at"
)


@pytest.mark.parametrize("number", range(len(ODD)))
async def test_the_relay_holds_the_original(store: Store, number: int) -> None:
    """FAILURES row 22: headers, key and payload in the queue are byte for byte the original; the cause beside them."""
    with contextlib.closing(store.connect()) as connection:
        Outbox().add_message(connection, odd(number))
        connection.commit()
    async with running_relay(store, FakePublisher(lambda message: Rejected("no_such_topic", "not there"))):
        await eventually(lambda: store.unsettled() == 0, what="held")
    (original,) = store.query(f"select {COLUMNS} from relevo_outbox")
    (copy,) = store.query(f"select {COLUMNS} from relevo_held_message")
    assert copy == original
    ((reason, code),) = store.query("select reason, error_type from relevo_held_key")
    assert "not there" in reason and code == "no_such_topic"


@pytest.mark.parametrize("number", range(len(ODD)))
async def test_the_consumer_holds_and_drains_the_original(store: Store, number: int) -> None:
    """FAILURES row 22: what waited in the held table reaches the handler as it came, attempts and causes beside it."""
    seen: list[Message] = []
    attempts: list[int] = []
    slow = Backoff(attempts=5, base=timedelta(milliseconds=50))
    consumer, broker = Consumer("books", ["shop.order"], retry=slow, inline_retry_s=0.0), FakeBroker()

    @consumer.on("shop.order.*")
    def handle(event: Event[Message]) -> None:
        seen.append(event.data)
        attempts.append(event.attempt)
        if len(seen) < 3:
            raise RuntimeError("not yet")

    message = odd(number)
    broker.append(message)
    async with running(consumer, store, broker):
        await settled(broker)
        await eventually(lambda: len(seen) == 3, what="drained")
        await eventually(lambda: store.query("select count(*) from relevo_held_key") == [(0,)], what="live again")
    first, _, last = seen
    assert first == message
    # SQLite keeps times to the millisecond; everything else is compared as it is.
    assert replace_time(last, message) == message
    assert attempts == [1, 2, 3]


def replace_time(message: Message, like: Message) -> Message:
    assert abs((message.created_at - like.created_at).total_seconds()) < 0.001
    return msgspec.structs.replace(message, created_at=like.created_at)
