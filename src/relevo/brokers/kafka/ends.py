"""Where partitions begin and end, and which topic a name means, asked over connections of its own.

Asked through the consumer, such a question stands behind the fetch that waits at the broker, keeps the reading thread
from polling meanwhile, and now and then left partitions that were not fetched any more (seen with librdkafka 2.16 and
Kafka 4.3.1 when a consumer that had caught up was asked many times a second).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final

from relevo.brokers.kafka.identity import mark_of
from relevo.brokers.kafka.options import KafkaOptions
from relevo.clients.confluent import answer_of, confluent, make
from relevo.errors import UnreachableError

TIMEOUT_S: Final = 10.0
Partition = tuple[str, int]


class Ends:
    """For one event loop. The client is made when first asked."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._admin: Any = None
        self._cluster: str | None = None

    async def marks(self, topics: Collection[str]) -> Mapping[str, str]:
        """The marks (``identity``) of those topics that exist and have an id: brokers before 2.8 give none. Raises
        ``UnreachableError``."""
        module = confluent()
        async with self._asking() as admin:
            if self._cluster is None:
                described = admin.describe_cluster(request_timeout=TIMEOUT_S)
                self._cluster = str((await answer_of(admin, described)).cluster_id or "")
            asked = admin.describe_topics(module.TopicCollection(list(topics)), request_timeout=TIMEOUT_S)
            found = await asyncio.gather(*(answer_of(admin, each) for each in asked.values()), return_exceptions=True)
        return {
            topic: mark_of(self._cluster, str(each.topic_id))
            for topic, each in zip(asked, found, strict=True)
            if not isinstance(each, BaseException) and _has_id(each)
        }

    async def of(self, partitions: Collection[Partition]) -> Mapping[Partition, tuple[int, int]]:
        """The first offset there is, and the one after the last. Raises ``UnreachableError``."""
        if not partitions:
            return {}
        module = confluent()
        places = [module.TopicPartition(topic, partition) for topic, partition in partitions]
        spec = module.admin.OffsetSpec
        async with self._asking() as admin:
            # One after the other: a client that does not know the leaders yet may leave the second one waiting.
            lows = await _offsets(admin, dict.fromkeys(places, spec.earliest()))
            highs = await _offsets(admin, dict.fromkeys(places, spec.latest()))
        return {partition: (low, high) for partition, low, high in zip(partitions, lows, highs, strict=True)}

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[Any]:
        if self._admin is None:
            self._admin = await asyncio.to_thread(make, "AdminClient", self._options.admin())
        try:
            async with asyncio.timeout(2 * TIMEOUT_S + 1.0):
                yield self._admin
        except confluent().KafkaException as error:
            raise UnreachableError(f"{error.args[0].name()}: {error.args[0].str()}") from error
        except TimeoutError:
            raise UnreachableError("Kafka did not answer") from None


async def _offsets(admin: Any, wanted: Mapping[Any, Any]) -> list[int]:
    asked = admin.list_offsets(wanted, request_timeout=TIMEOUT_S)
    found = await asyncio.gather(*[answer_of(admin, asked[place]) for place in wanted])
    return [int(each.offset) for each in found]


def _has_id(described: Any) -> bool:
    topic_id = described.topic_id
    return topic_id is not None and bool(topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits())
