"""Where partitions begin and end, asked over connections of its own.

Asked through the consumer, such a question stands behind the fetch that waits at the broker, keeps the reading thread
from polling meanwhile, and now and then left partitions that were not fetched any more (seen with librdkafka 2.16 and
Kafka 4.3.1 when a consumer that had caught up was asked many times a second).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

from relevo.brokers.kafka.options import KafkaOptions
from relevo.clients.confluent import confluent, make
from relevo.errors import UnreachableError

TIMEOUT_S: Final = 10.0
Partition = tuple[str, int]


class Ends:
    """For one event loop. The client is made when first asked."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._admin: Any = None

    async def of(self, partitions: Collection[Partition]) -> Mapping[Partition, tuple[int, int]]:
        """The first offset there is, and the one after the last. Raises ``UnreachableError``."""
        if not partitions:
            return {}
        module = confluent()
        if self._admin is None:
            self._admin = await asyncio.to_thread(make, "AdminClient", self._options.admin())
        places = [module.TopicPartition(topic, partition) for topic, partition in partitions]
        spec = module.admin.OffsetSpec
        try:
            async with asyncio.timeout(2 * TIMEOUT_S + 1.0):
                # One after the other: a client that does not know the leaders yet may leave the second one waiting.
                lows = await self._ask(dict.fromkeys(places, spec.earliest()))
                highs = await self._ask(dict.fromkeys(places, spec.latest()))
        except module.KafkaException as error:
            raise UnreachableError(f"{error.args[0].name()}: {error.args[0].str()}") from error
        except TimeoutError:
            raise UnreachableError("Kafka did not answer") from None
        return {partition: (low, high) for partition, low, high in zip(partitions, lows, highs, strict=True)}

    async def _ask(self, wanted: Mapping[Any, Any]) -> list[int]:
        asked = self._admin.list_offsets(wanted, request_timeout=TIMEOUT_S)
        found = await asyncio.gather(*[asyncio.wrap_future(asked[place]) for place in wanted])
        return [int(each.offset) for each in found]
