"""Positions on RabbitMQ are counted here, not by the server; what is queued for a held key is sorted by them."""

from __future__ import annotations

import secrets

from relevo.brokers import broker_for
from relevo.testing.broker_processes import make_message
from tests.support.waiting import eventually


async def test_positions_grow_over_the_life_of_a_process(rabbitmq_url: str) -> None:
    """A process takes two messages of a key and ends (they may be queued behind a held key, with their positions). The
    next process gets what came later: its positions must be higher, or the queue would be drained out of order."""
    topic = f"rabbit.{secrets.token_hex(8)}"
    broker = broker_for(rabbitmq_url, {"queues": 1})
    await broker.ensure_topics([topic])
    await (await broker.subscribe("books", [topic])).aclose()
    publisher = await broker.publisher(source="urn:relevo:test")
    positions: list[int] = []
    try:
        for _ in range(2):
            assert await publisher.publish([make_message(topic, key=b"one") for _ in range(2)]) == {}
            subscription = await broker.subscribe("books", [topic])
            before = len(positions)

            async def both() -> bool:
                deliveries = await subscription.take(10, 0.5)  # noqa: B023
                await subscription.settle(deliveries)  # noqa: B023
                positions.extend(delivery.position for delivery in deliveries)
                return len(positions) == before + 2  # noqa: B023

            await eventually(both, what="both are here")
            await subscription.flush()
            await subscription.aclose()
    finally:
        await publisher.aclose()
    assert positions == sorted(set(positions))
