"""One partition while it is assigned to us, seen from the event loop."""

from __future__ import annotations

import bisect
import logging
from collections import deque
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any, Final

from relevo import wire
from relevo.brokers.progress import Progress
from relevo.message import Message
from relevo.ports.broker import Delivery
from relevo.times import LATEST, from_ms

log = logging.getLogger("relevo.brokers.kafka")

_headers_of = methodcaller("headers")
"""Where a name is not UTF-8 the client raises and also returns: a list of pairs without a first element, which ends the
process when it is touched. CPython (3.11 and later) does not notice that at a method that is called often; at a call of
an object such as this one it always does. To be called once for each record: the second answer is the bare list."""


GAPS_MAX: Final = 100


def _warn(text: str | None) -> None:
    if text is not None:
        log.warning("%s", text)


def shard_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


class Shard:
    """``arrived``: fetched and not taken. ``returned``: handed back, to be delivered before those. ``asked``: the
    position of the newest commit under way or done. ``leaving``: being taken away; what was delivered can still be
    settled. ``next``: the position expected next; ``None``: not known. ``mark``: which topic the positions belong to
    (``identity``); ``None``: not known. It is committed with them. ``gaps``: positions that were expected, and those
    that came instead.

    Offsets of a partition begin again when its topic is deleted and made anew, or its log was cut. What is delivered
    then belongs to a new generation with a progress of its own; what was delivered before still runs, and is settled
    for nothing, since its offsets mean other records now."""

    __slots__ = (
        *("_first", "_generations", "_noticing", "arrived", "asked", "gaps", "generation", "leaving", "mark", "name"),
        *("next", "partition", "progress", "returned", "topic"),
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        generations: Iterator[int],
        *,
        start: int = -1,
        mark: str | None = None,
        noticing: Callable[[str | None], None] = _warn,
    ) -> None:
        """
        Args:
            generations: numbers that no other shard has.
            start: the position that the group has; -1: none.
            noticing: called with a warning, and with ``None`` when there is something to look at.
        """
        self.topic = topic
        self.partition = partition
        self.name = shard_name(topic, partition)
        self._generations = generations
        self._first = self.generation = next(generations)
        self._noticing = noticing
        self.next = start if start >= 0 else None
        self.mark = mark
        self.gaps: deque[tuple[int, int]] = deque(maxlen=GAPS_MAX)
        self.progress = Progress(start)
        self.arrived: deque[Any] = deque()
        self.returned: list[Delivery] = []
        self.asked = -1
        self.leaving = False

    @property
    def place(self) -> tuple[str, int, int, str | None]:
        """What is to be committed."""
        return self.topic, self.partition, self.progress.settled, self.mark

    def take(self, count: int) -> list[Delivery]:
        """Up to ``count`` deliveries, in order."""
        found = self.returned[:count]
        del self.returned[:count]
        while self.arrived and len(found) < count:
            found.append(self._deliver(self.arrived.popleft()))
        return found

    def owns(self, delivery: Delivery) -> bool:
        return self._first <= delivery.generation <= self.generation

    def settle(self, delivery: Delivery) -> None:
        if delivery.generation == self.generation:
            self.progress.settle(delivery.position)

    def committed(self, offset: int) -> None:
        """The broker confirmed ``offset``; a confirmation of more than was asked for is of an earlier generation."""
        if offset <= self.asked:
            self.progress.saved = max(self.progress.saved, offset)

    def hand_back(self, delivery: Delivery) -> None:
        place = bisect.bisect_left(self.returned, _place(delivery), key=_place)
        if self.returned[place : place + 1] != [delivery]:
            self.returned.insert(place, delivery)

    def _deliver(self, record: Any) -> Delivery:
        position = record.offset()
        if position != self.next:
            self._jumped(position)
        self.next = position + 1
        self.progress.deliver(position)
        try:
            message, malformed = self._decode(record, position)
        except Exception as error:  # noqa: BLE001 - a stranger's record, and a C library's word for it
            message, malformed = wire.stand_in(
                self.topic, record.key(), record.value(), shard=self.name, position=position, error=_explained(error)
            )
        return Delivery(
            message=message, shard=self.name, position=position, generation=self.generation, malformed=malformed
        )

    def begin_anew(self, mark: str | None) -> None:
        """What arrives from now on belongs to another log. What arrived before is delivered first."""
        self.returned.extend(map(self._deliver, self.arrived))
        self.arrived.clear()
        self._begin(mark)
        self.next = None

    def _jumped(self, position: int) -> None:
        """Not the position that was expected: a log has holes, was cut, or is another one."""
        if self.next is None:
            return
        if position > self.next:
            self.gaps.append((self.next, position))
            self._noticing(None)
            return
        self._noticing(
            f"{self.name}: the offsets went back: {self.next} was expected and {position} came. The topic was deleted "
            "and made anew, or its log was cut at its end. The consumer reads on from there; it still handles what it "
            "took before, but commits nothing of it"
        )
        self._begin(None)
        self.progress.deliver(position)
        self.progress.saved = -1  # what the group has is a place in the old log: replaced at once

    def _begin(self, mark: str | None) -> None:
        self.generation = next(self._generations)
        self.progress = Progress(-1)
        self.asked = -1
        self.mark = mark
        self.gaps.clear()
        self._noticing(None)

    def _decode(self, record: Any, position: int) -> tuple[Message, str | None]:
        _, created_ms = record.timestamp()
        arrived_at = from_ms(max(created_ms, 0))
        headers = _headers_of(record) or ()
        message = wire.decode(
            self.topic,
            record.key(),
            record.value(),
            headers,
            arrived_at=arrived_at,
            shard=self.name,
            position=position,
        )
        late = arrived_at is LATEST
        return message, f"its timestamp, {created_ms} ms, is beyond what a date can be" if late else None


def _place(delivery: Delivery) -> tuple[int, int]:
    return delivery.generation, delivery.position


def _explained(error: BaseException) -> BaseException:
    """What is below the ``SystemError`` of a call that raised and returned: one for each name that is not UTF-8."""
    while isinstance(error, SystemError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def record_size(record: Any) -> int:
    """Bytes a fetched record holds in memory, roughly."""
    return len(record.value() or b"") + len(record.key() or b"") + 500
