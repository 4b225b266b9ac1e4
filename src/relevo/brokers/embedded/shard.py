"""One shard while it is ours: where to read on, and what was delivered and settled."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from relevo import wire
from relevo.brokers.embedded.groups import Owned
from relevo.brokers.embedded.topics import Row
from relevo.brokers.progress import Progress
from relevo.ports.broker import Delivery

_unpack = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class Shard:
    """``returned``: handed back, to be delivered before anything else. ``leaving``: the shard is being given up;
    nothing more is delivered, but what was can still be settled."""

    __slots__ = ("generation", "leaving", "name", "next_position", "progress", "returned", "shard_id", "topic")

    def __init__(self, owned: Owned) -> None:
        self.name = f"{owned.topic}/{owned.part}"
        self.topic = owned.topic
        self.shard_id = owned.shard_id
        self.generation = owned.generation
        self.next_position = owned.committed
        self.progress = Progress(owned.committed)
        self.returned: list[Delivery] = []
        self.leaving = False

    def deliver(self, rows: Sequence[Row]) -> Iterator[Delivery]:
        """The deliveries of a page read from ``next_position``."""
        for position, key, payload, packed, created_ms in rows:
            self.next_position = position + 1
            self.progress.deliver(position)
            malformed = None
            try:
                headers = _unpack(packed)
            except msgspec.DecodeError as error:
                headers, malformed = [], f"the stored headers cannot be read: {error}"
            message = wire.decode(
                self.topic,
                key,
                payload,
                headers,
                arrived_at=datetime.fromtimestamp(created_ms / 1000, UTC),
                shard=self.name,
                position=position,
            )
            yield Delivery(
                message=message,
                shard=self.name,
                position=position,
                generation=self.generation,
                malformed=malformed,
            )

    def hand_back(self, delivery: Delivery) -> None:
        place = bisect.bisect_left(self.returned, delivery.position, key=lambda other: other.position)
        if self.returned[place : place + 1] != [delivery]:
            self.returned.insert(place, delivery)
