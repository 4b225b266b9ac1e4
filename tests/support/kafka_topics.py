"""What is on a topic of Kafka."""

from __future__ import annotations

import secrets
import time

from relevo.brokers import broker_for
from relevo.message import Message


async def arrived(kafka_url: str, topic: str, until: Message) -> list[object]:
    """Event ids on the topic's one partition, up to and with ``until``."""
    member = await broker_for(kafka_url).subscribe(f"g-{secrets.token_hex(8)}", [topic])
    found: list[object] = []
    deadline = time.monotonic() + 30
    try:
        while until.event_id not in found:
            assert time.monotonic() < deadline, found
            found.extend(delivery.message.event_id for delivery in await member.take(1000, 1.0))
    finally:
        await member.aclose()
    return found
