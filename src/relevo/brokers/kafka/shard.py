"""One partition while it is assigned to us, seen from the event loop."""

from __future__ import annotations

import bisect
from collections import deque
from datetime import UTC, datetime
from typing import Any

from relevo import wire
from relevo.brokers.progress import Progress
from relevo.ports.broker import Delivery


def shard_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


class Shard:
    """``arrived``: fetched and not taken. ``returned``: handed back, to be delivered before those. ``asked``: the
    position of the newest commit under way or done. ``leaving``: being taken away; what was delivered can still be
    settled."""

    __slots__ = ("arrived", "asked", "generation", "leaving", "name", "partition", "progress", "returned", "topic")

    def __init__(self, topic: str, partition: int, generation: int) -> None:
        self.topic = topic
        self.partition = partition
        self.name = shard_name(topic, partition)
        self.generation = generation
        self.progress = Progress(-1)  # where it begins is the broker's knowledge
        self.arrived: deque[Any] = deque()
        self.returned: list[Delivery] = []
        self.asked = -1
        self.leaving = False

    def take(self, count: int) -> list[Delivery]:
        """Up to ``count`` deliveries, in order."""
        found = self.returned[:count]
        del self.returned[:count]
        while self.arrived and len(found) < count:
            found.append(self._deliver(self.arrived.popleft()))
        return found

    def hand_back(self, delivery: Delivery) -> None:
        place = bisect.bisect_left(self.returned, delivery.position, key=lambda other: other.position)
        if self.returned[place : place + 1] != [delivery]:
            self.returned.insert(place, delivery)

    def _deliver(self, record: Any) -> Delivery:
        position = record.offset()
        self.progress.deliver(position)
        _, created_ms = record.timestamp()
        message = wire.decode(
            self.topic,
            record.key(),
            record.value(),
            record.headers() or (),
            arrived_at=datetime.fromtimestamp(max(created_ms, 0) / 1000, UTC),
            shard=self.name,
            position=position,
        )
        return Delivery(message=message, shard=self.name, position=position, generation=self.generation)


def record_size(record: Any) -> int:
    """Bytes a fetched record holds in memory, roughly."""
    return len(record.value() or b"") + len(record.key() or b"") + 500
