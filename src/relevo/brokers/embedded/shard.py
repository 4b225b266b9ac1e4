"""One shard while it is ours: where to read on, and what was delivered and settled."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator, Sequence

import msgspec

from relevo import wire
from relevo.brokers.embedded.groups import Owned
from relevo.brokers.embedded.topics import Row
from relevo.brokers.progress import Progress
from relevo.message import Message
from relevo.ports.broker import Delivery
from relevo.times import EARLIEST, LATEST, from_ms

log = logging.getLogger("relevo.brokers.embedded")

_unpack = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class Shard:
    """``returned``: handed back, to be delivered before anything else. ``leaving``: the shard is being given up;
    nothing more is delivered, but what was can still be settled. ``lease``: the generation of our lease in the file,
    which a restored file may have had before; ``generation`` is of this object alone."""

    __slots__ = ("generation", "lease", "leaving", "name", "next_position", "progress", "returned", "shard_id", "topic")

    def __init__(self, owned: Owned, generation: int) -> None:
        self.name = f"{owned.topic}/{owned.part}"
        self.topic = owned.topic
        self.shard_id = owned.shard_id
        self.lease = owned.generation
        self.generation = generation
        self.next_position = owned.committed
        self.progress = Progress(owned.committed)
        self.returned: list[Delivery] = []
        self.leaving = False

    def deliver(self, rows: Sequence[Row]) -> Iterator[Delivery]:
        """The deliveries of a page read from ``next_position``."""
        for row in rows:
            position, key, payload, _, _ = row
            self.next_position = position + 1
            self.progress.deliver(position)
            try:
                message, malformed = self._decode(row)
            except Exception as error:  # noqa: BLE001 - a record that was written by hand
                message, malformed = wire.stand_in(
                    self.topic, key, payload, shard=self.name, position=position, error=error
                )
            yield Delivery(
                message=message,
                shard=self.name,
                position=position,
                generation=self.generation,
                malformed=malformed,
            )

    def _decode(self, row: Row) -> tuple[Message, str | None]:
        position, key, payload, packed, created_ms = row
        malformed = None
        try:
            headers = _unpack(packed)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            headers, malformed = [], f"the stored headers cannot be read: {error}"
        arrived_at = from_ms(created_ms)
        if arrived_at is EARLIEST or arrived_at is LATEST:
            malformed = f"the stored time, {created_ms} ms, is beyond what a date can be"
        message = wire.decode(
            self.topic, key, payload, headers, arrived_at=arrived_at, shard=self.name, position=position
        )
        return message, malformed

    def hand_back(self, delivery: Delivery) -> None:
        place = bisect.bisect_left(self.returned, delivery.position, key=lambda other: other.position)
        if self.returned[place : place + 1] != [delivery]:
            self.returned.insert(place, delivery)


def take_over(
    shards: dict[str, Shard], found: Sequence[Owned], generations: Iterator[int], group: str, replaced: bool
) -> None:
    """Have exactly the shards in ``found``. Those whose lease is another one are lost; those whose positions went back,
    and all where the file was ``replaced``, begin anew."""
    owned = {f"{each.topic}/{each.part}": each for each in found}
    for name, shard in list(shards.items()):
        now = owned.get(name)
        if replaced or (now is not None and now.end < shard.next_position):
            del shards[name]
            log.warning(
                "group %s: the file was replaced or restored while it was read: %s goes on from what it says was "
                "settled; what was taken before position %d is settled for nothing",
                *(group, name, shard.next_position),
            )
        elif now is None or now.generation != shard.lease:
            del shards[name]
            log.warning("group %s: lost %s; its new owner goes on from what was settled", group, name)
    for name, each in owned.items():
        if name not in shards:
            shards[name] = Shard(each, next(generations))
