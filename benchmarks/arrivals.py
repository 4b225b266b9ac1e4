"""What is in the topics after a run: how many events, how often, in what order."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

_NUMBER = re.compile(rb'"(?:order_id|n)": ?(\d+)')
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Arrived:
    """``events``: different ones. ``repeated``: messages beyond the first of their event. ``swapped``: events that came
    after a younger one of their topic and key."""

    events: int
    repeated: int
    swapped: int


def number(value: bytes | None) -> int:
    """Which event a message is of, whatever its sender wrapped around the body."""
    found = _NUMBER.search(value or b"")
    if found is None:
        raise ValueError(f"a message that no benchmark wrote: {(value or b'')[:80]!r}")
    return int(found.group(1))


def read(bootstrap: str, ends: Mapping[tuple[str, int], int]) -> Arrived:
    """Read partitions from their beginning. ``ends``: (topic, partition) → the offset to read up to."""
    left = sum(ends.values())
    newest: dict[tuple[str, bytes], int] = {}
    seen: set[int] = set()
    repeated = swapped = 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench.arrivals", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for (topic, partition), end in ends.items() if end])
    deadline = time.monotonic() + PATIENCE_S
    try:
        while left > 0:
            messages = consumer.consume(10_000, 0.2)
            if messages:
                deadline = time.monotonic() + PATIENCE_S
            elif time.monotonic() > deadline:
                raise SystemExit(f"{left} messages could not be read back within {PATIENCE_S:g} s")
            for message in messages:
                if message.error() is not None:
                    raise SystemExit(f"the messages could not be read back: {message.error()}")
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None and partition is not None and offset is not None
                if offset >= ends[topic, partition]:
                    continue
                left -= 1
                event, place = number(message.value()), (topic, message.key() or b"")
                if event in seen:
                    repeated += 1
                    continue
                seen.add(event)
                swapped += event < newest.get(place, 0)
                newest[place] = max(event, newest.get(place, 0))
    finally:
        consumer.close()
    return Arrived(len(seen), repeated, swapped)
