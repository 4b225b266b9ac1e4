"""Where a new group begins when it is not to begin at the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

TIMEOUT_S: Final = 10.0


def begin_at_end(consumer: Any, kafka: Any, partitions: Sequence[Any]) -> Sequence[Any]:
    """``partitions`` with the offsets to begin at.

    Kafka's own ``auto.offset.reset=latest`` would decide anew at every start until something is committed, and for
    every partition added later: messages would be skipped. So the group's beginning is committed once, for all
    partitions of a topic the group has no position in; a partition that comes later is read from its start.
    """
    begin: dict[tuple[str, int], int] = {}
    for topic in {partition.topic for partition in partitions}:
        described = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        everything = [kafka.TopicPartition(topic, number) for number in described.partitions]
        if any(known.offset >= 0 for known in consumer.committed(everything, timeout=TIMEOUT_S)):
            continue
        ends = []
        for partition in everything:
            _, end = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S, cached=False)
            ends.append(kafka.TopicPartition(topic, partition.partition, end))
            begin[topic, partition.partition] = end
        consumer.commit(offsets=ends, asynchronous=False)
    for partition in partitions:
        end_offset = begin.get((partition.topic, partition.partition))
        if end_offset is not None:
            partition.offset = end_offset
    return partitions
