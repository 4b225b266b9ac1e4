"""Reading everything in the broker, and explaining every repeat there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from relevo.brokers import broker_for
from relevo.message import Message
from tests.support.matrix.app import payload_of

READER = "wire"
QUIET_S = 0.5


def declare(url: str, options: dict[str, Any], topic: str, consumers: Sequence[str]) -> None:
    """The topic, and what a broker without history needs so that it keeps messages for ``consumers``."""

    async def go() -> None:
        broker = broker_for(url, options)
        await broker.ensure_topics([topic])
        if not broker.capabilities.keeps_history:
            for name in consumers:
                await (await broker.subscribe(name, [topic])).aclose()

    asyncio.run(go())


def read(url: str, options: dict[str, Any], topic: str, enough: int, patience_s: float = 30.0) -> list[Message]:
    """All messages of ``topic`` in the order of each shard: until ``enough`` different ones came and no more do."""

    async def go() -> list[Message]:
        subscription = await broker_for(url, options).subscribe(READER, [topic])
        found: list[Message] = []
        deadline = time.monotonic() + patience_s
        try:
            while time.monotonic() < deadline:
                deliveries = await subscription.take(1000, QUIET_S)
                found.extend(delivery.message for delivery in deliveries)
                await subscription.settle(deliveries)  # a queue gives only so many that are not
                if not deliveries and len({message.event_id for message in found}) >= enough:
                    break
        finally:
            await subscription.aclose()
        return found

    return asyncio.run(go())


@dataclass
class Wire:
    """What was on the wire. ``restarts``: for each key, how often the stream went back to an earlier message."""

    ids: set[str] = field(default_factory=set)
    repeats: int = 0
    restarts: dict[str, int] = field(default_factory=dict)
    swapped: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Wire:
        wire = cls()
        last: dict[str, int] = {}
        highest: dict[str, int] = {}
        for message in messages:
            account, version = payload_of(message.payload)
            known = str(message.event_id) in wire.ids
            wire.ids.add(str(message.event_id))
            wire.repeats += known
            if not known and version != highest.get(account, 0) + 1:
                wire.swapped.append(f"{account}: {version} after {highest.get(account, 0)}")
            elif known and version != last[account] + 1:
                wire.restarts[account] = wire.restarts.get(account, 0) + 1
            last[account] = version
            highest[account] = max(version, highest.get(account, 0))
        return wire
