"""A shard is taken away while what was taken from it is still being written down: nothing of it may run any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from relevo.consumer.intake import Intake
from relevo.ids import uuid7
from relevo.message import Message
from relevo.ports.broker import Delivery
from relevo.runtime.pulse import Pulse
from relevo.storage.holding import KeyId


def delivery(position: int) -> Delivery:
    message = Message(event_id=uuid7(), type="t", topic="x", key=b"k", payload=b"{}", created_at=datetime.now(UTC))
    return Delivery(message=message, shard="x/0", position=position, generation=1)


class Subscription:
    """Owns everything until it has let go, as a real one does while it waits for what runs."""

    def __init__(self) -> None:
        self.back: list[int] = []

    def owns(self, delivery: Delivery) -> bool:
        return True

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        self.back += [each.position for each in deliveries]

    async def flush(self) -> None: ...


class Journal:
    """Slow: the database was away for a moment."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def taken(self, event_ids: Sequence[Any]) -> dict[Any, Any]:
        self.asked.set()
        await self.answer.wait()
        return {}

    async def flush(self) -> None: ...

    async def hand_back(self, event_ids: Sequence[Any]) -> None: ...


async def test_what_was_not_written_down_when_its_shard_went_does_not_run() -> None:
    """Found by the crash matrix on RabbitMQ: earlier messages of the key were given back, a later one was still being
    journaled when the shard was revoked, ran before them, and its key was out of order."""
    ran: list[int] = []
    journal, subscription = Journal(), Subscription()

    async def up() -> None: ...

    shared: Any = SimpleNamespace(
        name="books",
        journal=journal,
        routes=SimpleNamespace(find=lambda type: object(), skips=lambda type: False),
        key_of=lambda message, handler: KeyId("consumer", "books", "x", b"k"),
        interrupt=SimpleNamespace(stopping=False, stir=lambda: None),
        database=SimpleNamespace(reason=None, up=up),
        pulse=Pulse(),
        drain_wanted=asyncio.Event(),
    )
    intake = Intake(shared, subscription, in_flight_max=10, batch_max=10)  # type: ignore[arg-type]
    messages: Any = intake._messages
    over = messages._over

    async def process(item: Any) -> bool:
        if not over(item):
            ran.append(item.delivery.position)
        return False

    messages.process = process
    accepting = asyncio.create_task(intake._accept([delivery(4), delivery(5)]))
    await journal.asked.wait()
    await intake.revoked(["x/0"], 1.0)
    journal.answer.set()
    await accepting
    await intake._queues.join()
    assert ran == []
    assert subscription.back == [4, 5]
