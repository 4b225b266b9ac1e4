"""Reading from Kafka as one member of a group: the event loop's side."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from relevo.brokers.kafka.admin import Topics, missing
from relevo.brokers.kafka.commits import TOLD_S, Commits
from relevo.brokers.kafka.ends import Ends
from relevo.brokers.kafka.options import KafkaOptions
from relevo.brokers.kafka.outcomes import REJECTED
from relevo.brokers.kafka.reader import Position, Reader
from relevo.brokers.kafka.shard import Shard, record_size, shard_name
from relevo.brokers.kafka.watch import Watch
from relevo.errors import ConfigError, MisuseError, UnreachableError
from relevo.outcome import Unavailable
from relevo.ports.broker import Delivery, Revoked
from relevo.tasks import Kept, Tasks

log = logging.getLogger("relevo.brokers.kafka")

COMMIT_EVERY_S: Final = 0.25
FLUSH_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 15.0
REVOKE_TIMEOUT_S: Final = 30.0
ASK_TIMEOUT_S: Final = 2.0


class KafkaSubscription:
    """The ``Subscription`` port."""

    def __init__(self, options: KafkaOptions, group: str, topics: Sequence[str], from_start: bool) -> None:
        self._group = group
        self._servers = options.servers
        self._shards: dict[str, Shard] = {}
        self._generations = count(1)
        self._paused = False
        self._closed = False
        self._down = False
        self._refused: dict[str, ConfigError] = {}
        self._revoked: Revoked | None = None
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._commits = Commits(group)
        self._strange: dict[tuple[str, str], float] = {}
        self._kept: list[Kept] = []
        self._topics = list(dict.fromkeys(topics))
        self._known = Topics(options)
        self._ends = Ends(options)
        self._reader = Reader(options, group, self._topics, from_start, self, REVOKE_TIMEOUT_S)
        self._watch = Watch(group, self._ends, self._shards, self._reader)

    def start(self) -> None:
        self._reader.start()
        tasks = Tasks(f"group {self._group}", log)
        self._kept = [
            tasks.keep("committing", self._commit_now_and_then, may_end=lambda: self._closed),
            tasks.keep("looking at its positions", self._watch.run, may_end=lambda: self._closed),
        ]

    @property
    def notices(self) -> Sequence[str]:
        """The last warnings about positions that are gone or began again."""
        return list(self._watch.notices)

    @property
    def problem(self) -> str | None:
        return self._commits.problem

    async def take(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        if self._closed:
            raise MisuseError("this subscription is closed")
        deadline = self._loop.time() + timeout_s
        while not self._closed:
            self._news.clear()
            if not self._paused and (found := self._take(max_messages)):
                return found
            for error in self._refused.values():
                raise ConfigError(str(error))
            if self._down:
                await self._ask_whether_it_is_back()
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._news.wait()
        return []

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            shard = self._shards.get(delivery.shard)
            if shard is not None:
                shard.settle(delivery)

    async def flush(self) -> None:
        self._commit(list(self._shards.values()))
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                while any(shard.progress.saved < shard.asked for shard in self._shards.values()):
                    self._commits.answered.clear()
                    await self._commits.answered.wait()
                    if self._commits.error is not None:
                        raise UnreachableError(f"what was settled could not be committed: {self._commits.error}")
        except TimeoutError:
            raise UnreachableError(f"Kafka at {self._servers} did not confirm a commit") from None

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            shard = self._shards.get(delivery.shard)
            if shard is not None and shard.owns(delivery):
                shard.hand_back(delivery)
        self._news.set()

    def pause(self) -> None:
        # What is fetched already waits in the buffer; when that is full, the reader pauses the partitions.
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._news.set()

    def owns(self, delivery: Delivery) -> bool:
        shard = self._shards.get(delivery.shard)
        return shard is not None and shard.owns(delivery)

    def on_revoke(self, callback: Revoked) -> None:
        self._revoked = callback

    async def lag(self) -> Mapping[str, int]:
        shards = list(self._shards.values())
        ends = await self._ends.of([(shard.topic, shard.partition) for shard in shards])
        found: dict[str, int] = {}
        for shard in shards:
            low, high = ends[shard.topic, shard.partition]
            found[shard.name] = max(high - max(low, shard.progress.settled), 0)
        return found

    async def shard_count(self) -> int:
        topics = (await self._known.get(self._topics)).values()
        for topic in topics:
            if isinstance(topic.refused, Unavailable) and not topic.partitions:
                raise UnreachableError(topic.refused.reason)
        return sum(topic.partitions for topic in topics)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._news.set()
        for kept in self._kept:
            kept.cancel()
            await asyncio.wait([kept.over])
        if not await self._reader.close(CLOSE_TIMEOUT_S):
            log.warning(
                "group %s: Kafka did not let us leave in %.0f s; our shards wait for session.timeout.ms, and messages "
                "settled last are delivered again",
                *(self._group, CLOSE_TIMEOUT_S),
            )
        self._shards.clear()

    # -- what the reader tells -----------------------------------------------------------------------------------------

    def assigned(self, positions: Sequence[Position]) -> None:
        for topic, partition, start, mark in positions:
            watch = self._watch.noticing
            shard = Shard(topic, partition, self._generations, start=start, mark=mark, noticing=watch)
            self._shards[shard.name] = shard
            self._refused.pop(topic, None)
        self._down = False
        self._watch.noticing(None)

    def begins_anew(self, topic: str, partition: int, mark: str) -> None:
        shard = self._shards.get(shard_name(topic, partition))
        if shard is not None:
            self._reader.let_go(len(shard.arrived), sum(map(record_size, shard.arrived)))
            shard.begin_anew(mark)
            self._news.set()

    async def revoked(self, partitions: Sequence[tuple[str, int]]) -> Sequence[Position]:
        names = [shard_name(topic, partition) for topic, partition in partitions]
        shards = [self._shards[name] for name in names if name in self._shards]
        for shard in shards:
            shard.leaving = True
        if self._revoked is not None and shards and not self._closed:
            try:
                await self._revoked([shard.name for shard in shards])
            except Exception:
                log.exception("group %s: the callback for revoked shards failed", self._group)
        self._drop(shards)
        return [shard.place for shard in shards if shard.progress.unsaved]

    def lost(self, partitions: Sequence[tuple[str, int]]) -> None:
        names = [shard_name(topic, partition) for topic, partition in partitions]
        if names:
            log.warning("group %s: lost %s; their new owners go on from what was settled", self._group, names)
        self._drop([self._shards[name] for name in names if name in self._shards])

    def fetched(self, records: Sequence[Any]) -> None:
        self._down = False
        for record in records:
            shard = self._shards.get(shard_name(record.topic(), record.partition()))
            if shard is not None and not shard.leaving:
                shard.arrived.append(record)
            else:
                self._reader.let_go(1, record_size(record))
        self._news.set()

    def committed(self, positions: Sequence[Position], error: str | None) -> None:
        for topic, partition, offset, _ in positions:
            shard = self._shards.get(shard_name(topic, partition))
            if shard is None:
                continue
            if error is None:
                shard.committed(offset)
            else:
                shard.asked = shard.progress.saved  # asked again in a moment
        self._commits.answer(error)

    def failed(self, topic: str | None, name: str, reason: str) -> None:
        code = REJECTED.get(name)
        if topic is not None and code is not None:
            text = missing(topic) if code == "unknown_topic" else f"{topic}: {name}: {reason}"
            self._refused[topic] = ConfigError(text)
        elif name in ("_ALL_BROKERS_DOWN", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            self._down = True
        elif topic is not None and self._loop.time() - self._strange.get((topic, name), -TOLD_S) >= TOLD_S:
            self._strange[topic, name] = self._loop.time()
            log.warning("group %s: Kafka cannot give a record of %s (%s: %s)", self._group, topic, name, reason)
        else:
            log.debug("group %s: %s: %s", self._group, name, reason)
        self._news.set()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _take(self, max_messages: int) -> list[Delivery]:
        found: list[Delivery] = []
        for name in list(self._shards):
            shard = self._shards[name]
            if shard.leaving or not (shard.arrived or shard.returned):
                continue
            # Every shard is the first one at some time.
            self._shards[name] = self._shards.pop(name)
            before = len(shard.arrived)
            found.extend(shard.take(max_messages - len(found)))
            taken = before - len(shard.arrived)
            if taken:
                self._reader.let_go(taken, sum(_size(delivery) for delivery in found[-taken:]))
            if len(found) >= max_messages:
                break
        return found

    def _drop(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            self._reader.let_go(len(shard.arrived), sum(map(record_size, shard.arrived)))
            if self._shards.get(shard.name) is shard:
                del self._shards[shard.name]

    def _commit(self, shards: Sequence[Shard]) -> None:
        positions = []
        for shard in shards:
            settled = shard.progress.settled
            if settled > max(shard.asked, shard.progress.saved):
                shard.asked = settled
                positions.append(shard.place)
        if positions:
            self._reader.commit(positions)

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_EVERY_S)
            self._commit(list(self._shards.values()))

    async def _ask_whether_it_is_back(self) -> None:
        try:
            await self._reader.run(lambda consumer: consumer.list_topics(timeout=ASK_TIMEOUT_S), ASK_TIMEOUT_S * 2)
        except UnreachableError as error:
            raise UnreachableError(f"Kafka at {self._servers} does not answer: {error}") from error
        self._down = False


def _size(delivery: Delivery) -> int:
    """The same as ``record_size`` of its record."""
    return len(delivery.message.payload or b"") + len(delivery.message.key or b"") + 500
