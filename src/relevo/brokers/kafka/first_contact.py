"""Partitions in which the broker has stored nothing of a producer yet.

What keeps a batch from being stored behind one that was refused is its sequence number: the broker expects the refused
one first. In a partition where it knows nothing of the producer it takes any number. librdkafka's gapless mode does not
help: a second batch, made ready while the first is on its way, still goes out after the refusal (17 % of 60 runs on a
busy machine, with one request in flight; 0 % of 200 in a partition that had stored one message; Kafka 4.3.1, librdkafka
2.16). So a key's first message waits for its confirmation before more of the key is handed over, until every partition
of the topic has stored something.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from relevo.brokers.kafka.admin import Topic
from relevo.brokers.refusals import OrderedKey
from relevo.outgoing import Sendable

REMEMBERED_S: Final = 3600.0
"""Brokers forget a producer after ``producer.id.expiration.ms`` (a day) without a message in the partition."""


class FirstContact:
    """Of one producer. ``met`` runs in the producer's thread, for messages the loop is waiting for; the rest on the
    loop."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._known: dict[str, int] = {}
        """Topics of which every partition has stored something, and how many that are."""
        self._partitions: dict[str, set[int]] = {}
        self._keys: set[OrderedKey] = set()
        """Of topics that are not known."""
        self._until = time.monotonic() + REMEMBERED_S

    def first(self, messages: Sequence[Sendable], topics: Mapping[str, Topic]) -> list[int]:
        """Indexes of the messages that must be confirmed before others of their key are handed over."""
        if time.monotonic() > self._until:
            self._forget()
        strange = {name for name, topic in topics.items() if self._known.get(name) != topic.partitions}
        if not strange:
            return []
        begun = set(self._keys)
        found: list[int] = []
        for index, message in enumerate(messages):
            if message.key is not None and message.topic in strange and (message.topic, message.key) not in begun:
                begun.add((message.topic, message.key))
                found.append(index)
        return found

    def met(self, topic: str, key: bytes, partition: int) -> None:
        """The broker has stored a message of ``key`` in ``partition``."""
        self._keys.add((topic, key))
        self._partitions.setdefault(topic, set()).add(partition)

    def conclude(self, topics: Mapping[str, Topic]) -> None:
        """Topics whose partitions have all stored something need nothing more."""
        for name, topic in topics.items():
            if len(self._partitions.get(name, ())) >= topic.partitions > 0:
                self._known[name] = topic.partitions
                del self._partitions[name]
                self._keys = {key for key in self._keys if key[0] != name}
