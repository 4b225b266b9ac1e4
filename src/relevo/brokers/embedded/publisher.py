"""Appending to the embedded broker: one transaction per call."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from relevo import wire
from relevo.brokers.embedded import clock, topics
from relevo.brokers.embedded.file import BrokerFile, writing
from relevo.brokers.embedded.options import EmbeddedOptions
from relevo.brokers.murmur2 import partition_of
from relevo.brokers.refusals import BEHIND, Refusals
from relevo.brokers.rejections import too_large, unknown_topic, unusable_topic
from relevo.errors import MisuseError, RelevoError
from relevo.outcome import Accepted, PublishOutcome, Rejected, Unavailable
from relevo.outgoing import Sendable
from relevo.ports.broker import BrokerCapabilities

_pack = msgspec.msgpack.Encoder().encode


class EmbeddedPublisher:
    """The ``Publisher`` port. Calls are worked on one after the other; a call is one transaction, so it is stored as a
    whole (but for refused messages) or not at all."""

    def __init__(
        self,
        file: BrokerFile,
        options: EmbeddedOptions,
        capabilities: BrokerCapabilities,
        source: str,
        send_timeout_s: float,
    ) -> None:
        self.capabilities = capabilities
        self._file = file
        self._options = options
        self._source = source.encode()
        self._send_timeout_s = send_timeout_s
        self._refusals = Refusals()
        self._spread = itertools.count()
        self._under_way: set[asyncio.Future[dict[int, PublishOutcome]]] = set()
        self._closed = False

    async def publish(self, messages: Sequence[Sendable]) -> Mapping[int, PublishOutcome]:
        if self._closed:
            raise MisuseError("this publisher is closed")
        call = self._refusals.begin()
        # A task of its own: once handed over, a call is finished in order, even if this caller is cancelled.
        work: asyncio.Future[dict[int, PublishOutcome]] = asyncio.ensure_future(
            self._file.run(lambda connection: self._publish(connection, call, messages))
        )
        self._under_way.add(work)
        work.add_done_callback(self._ended)
        try:
            return await self._refusals.told(call, work)
        except RelevoError as error:
            return dict.fromkeys(range(len(messages)), Unavailable(str(error)))

    async def probe(self, topic: str) -> PublishOutcome:
        def look(connection: sqlite3.Connection) -> Sequence[int]:
            # Reading alone would succeed on a full disk or behind a stuck writer.
            with self._file.patience(connection, self._send_timeout_s), writing(connection):
                return topics.shards_of(connection, topic)

        try:
            shards = await self._file.run(look)
        except RelevoError as error:
            return Unavailable(str(error))
        if shards:
            return Accepted()
        return unusable_topic(topic) or (Accepted() if self._options.auto_create else unknown_topic(topic))

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._file.release()

    def _ended(self, work: asyncio.Future[dict[int, PublishOutcome]]) -> None:
        self._under_way.discard(work)
        if not work.cancelled():
            work.exception()  # looked at, also when the caller was cancelled

    def _publish(
        self, connection: sqlite3.Connection, call: int, messages: Sequence[Sendable]
    ) -> dict[int, PublishOutcome]:
        outcomes: dict[int, PublishOutcome] = {}
        try:
            with self._file.patience(connection, self._send_timeout_s), writing(connection):
                self._append(connection, call, messages, outcomes)
        except BaseException:
            for message in messages:
                if message.key is not None:
                    self._refusals.refuse(call, (message.topic, message.key))
            raise
        self._file.changed()
        return outcomes

    def _append(
        self,
        connection: sqlite3.Connection,
        call: int,
        messages: Sequence[Sendable],
        outcomes: dict[int, PublishOutcome],
    ) -> None:
        shards: dict[str, Sequence[int]] = {}  # asked anew in each transaction: another process may have created one
        ends: dict[int, int] = {}
        records: list[topics.Record] = []
        now_ms = clock.now_ms(connection)
        refusals, source, encode, pack = self._refusals, self._source, wire.encode, _pack
        for index, message in enumerate(messages):
            topic, key = message.topic, message.key
            if key is not None and refusals.closed(call, (topic, key)):
                outcomes[index] = BEHIND
                refusals.refuse(call, (topic, key))
                continue
            ids = shards.get(topic)
            if ids is None:
                ids = shards[topic] = self._shards(connection, topic)
            refused = self._refused(message, ids)
            if refused is not None:
                outcomes[index] = refused
                if key is not None:
                    refusals.refuse(call, (topic, key))
                continue
            shard_id = ids[next(self._spread) % len(ids) if key is None else partition_of(key, len(ids))]
            position = ends.get(shard_id)
            if position is None:
                position = topics.next_position(connection, shard_id)
            ends[shard_id] = position + 1
            records.append((shard_id, position, key, message.payload, pack(encode(message, source)), now_ms))
        topics.append(connection, records, [(end, shard_id) for shard_id, end in ends.items()])

    def _shards(self, connection: sqlite3.Connection, topic: str) -> Sequence[int]:
        if self._options.auto_create and unusable_topic(topic) is None:
            return topics.create(connection, topic, self._options.partitions)
        return topics.shards_of(connection, topic)

    def _refused(self, message: Sendable, shards: Sequence[int]) -> Rejected | None:
        if not shards:
            return unusable_topic(message.topic) or unknown_topic(message.topic)
        return too_large(message, self._options.message_bytes_max)
