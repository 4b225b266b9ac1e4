"""A consumer that writes dead letters, on a real broker or on one whose publisher says what the test wants."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from relevo import Backoff, Consumer, Event
from relevo.brokers import broker_for
from relevo.ids import uuid7
from relevo.message import Message
from relevo.ports.broker import Broker
from tests.support.consumers import insert
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import FakePublisher

TYPE = "shop.order.placed"


def names() -> tuple[str, str]:
    """A consumer's and a topic's name that nobody else has."""
    return f"billing{secrets.token_hex(4)}", f"shop.{secrets.token_hex(4)}"


def order(topic: str, number: int, key: str) -> Message:
    """With odd white space and a header, which must come through as they are."""
    return Message(
        event_id=uuid7(),
        type=TYPE,
        topic=topic,
        payload=b'{ "order_id":%d, "note": "\xc3\xa4" }' % number,
        created_at=datetime.now(UTC).replace(microsecond=1000),
        key=key.encode(),
        headers={"shop": "north"},
    )


def billing(name: str, topic: str, bad: set[int], **options: Any) -> Consumer:
    """Fails at once for the numbers in ``bad``; writes an effect for the others. One message per transaction."""
    retry = Backoff(attempts=1, base=timedelta(milliseconds=1), cap=timedelta(milliseconds=20))
    consumer = Consumer(name, [topic], retry=retry, **options)

    @consumer.on(TYPE)
    def charge(event: Event[Message], tx: Any) -> None:
        number = json.loads(event.data.payload or b"")["order_id"]
        if number in bad:
            raise ValueError(f"no price for {number}")
        insert(tx, number)

    return consumer


async def publish(broker: Broker, messages: Sequence[Message]) -> None:
    publisher = await broker.publisher(source="urn:relevo:test")
    try:
        assert await publisher.publish(messages) == {}
    finally:
        await publisher.aclose()


async def read(broker: Broker, topic: str, group: str, count: int) -> list[Message]:
    """At least ``count`` messages of a topic, and what else is there."""
    subscription = await broker.subscribe(group, [topic])
    found: list[Message] = []
    quiet = 0
    try:
        for _ in range(120):
            deliveries = await subscription.take(100, 0.5)
            found += [delivery.message for delivery in deliveries]
            await subscription.settle(deliveries)
            quiet = 0 if deliveries else quiet + 1
            if len(found) >= count and quiet >= 2:
                return found
    finally:
        await subscription.aclose()
    raise AssertionError(f"only {len(found)} of {count}")


@dataclass
class SaysBroker(FakeBroker):
    """The in-memory log, with a publisher of the test's."""

    says: FakePublisher = field(default_factory=FakePublisher)
    ensured: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def publisher(self, *, source: str, send_timeout_s: float = 5.0) -> Any:
        return self.says

    async def ensure_topics(self, topics: Sequence[str]) -> Sequence[str]:
        self.ensured += topics
        return topics


def real(url: str) -> Broker:
    return broker_for(url, {"session.timeout.ms": 6000} if url.startswith("kafka") else {})
