"""Where a group begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from relevo.brokers.kafka.identity import read_mark
from relevo.clients.confluent import log

TIMEOUT_S: Final = 10.0


def committed(consumer: Any, kafka: Any, partitions: Sequence[Any]) -> list[tuple[str, int, int, str | None]]:
    """What the group has of ``partitions``: topic, partition, offset (below 0: none, or not known) and the mark of the
    topic that the offset belongs to."""
    wanted = [kafka.TopicPartition(partition.topic, partition.partition) for partition in partitions]
    try:
        found = consumer.committed(wanted, timeout=TIMEOUT_S) if wanted else []
    except kafka.KafkaException as error:
        log.warning(
            "the positions of %d partitions could not be read (%s): a log that was cut is not noticed there",
            *(len(wanted), error.args[0].str()),
        )
        found = wanted
    return [
        (place.topic, place.partition, max(-1, place.offset) if place.error is None else -1, read_mark(place.metadata))
        for place in found
    ]


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
