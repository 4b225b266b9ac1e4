"""Reading from the embedded broker as one member of a group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Final
from uuid import uuid4

from relevo.brokers.embedded import groups, topics
from relevo.brokers.embedded.file import BrokerFile, writing
from relevo.brokers.embedded.options import EmbeddedOptions
from relevo.brokers.embedded.shard import Shard, take_over
from relevo.brokers.keeping import failed, let_finish
from relevo.brokers.rejections import unknown_topic
from relevo.errors import ConfigError, MisuseError, RelevoError
from relevo.ports.broker import Delivery, Revoked
from relevo.tasks import Kept, Tasks

log = logging.getLogger("relevo.brokers.embedded")

COMMIT_EVERY_S: Final = 0.25
FETCH_BYTES_MAX: Final = 16_000_000
"""Payload bytes after which a take ends early."""


class EmbeddedSubscription:
    """The ``Subscription`` port. A task renews the lease; a loop that is blocked for longer than ``lease_s`` loses its
    shards, and what it settles afterwards is refused by their generation."""

    def __init__(
        self,
        file: BrokerFile,
        options: EmbeddedOptions,
        group: str,
        wanted: Sequence[str],
        from_start: bool,
    ) -> None:
        self._file = file
        self._options = options
        self._group = group
        self._topics = list(dict.fromkeys(wanted))
        self._from_start = from_start
        self._member = uuid4().hex
        self._shards: dict[str, Shard] = {}
        self._missing: Sequence[str] = self._topics
        self._epoch = -1
        self._incarnation = file.incarnation
        self._generations = count(1)
        self._paused = False
        self._closed = False
        self._revoked: Revoked | None = None
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()  # something may be there to take
        self._due = asyncio.Event()  # the keeper should look at the group now
        self._looking = asyncio.Lock()
        self._keeper: Kept | None = None
        self.problem: str | None = None
        """Why its lease is not renewed or its positions are not stored now."""

    async def start(self) -> None:
        """Join the group."""
        if self._options.auto_create:
            await self._file.run(self._create_topics)
        await self._look()
        tasks = Tasks(f"group {self._group}", log)
        self._keeper = tasks.keep("keeping the lease", self._keep, may_end=lambda: self._closed)

    async def take(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        if self._closed:
            raise MisuseError("this subscription is closed")
        deadline = self._loop.time() + timeout_s
        while not self._closed:
            self._news.clear()
            seen = self._file.changes
            if self._missing:
                await self._look()
            if self._missing:
                raise ConfigError(unknown_topic(self._missing[0]).reason)
            if not self._paused and (deliveries := await self._fetch(max_messages)):
                return deliveries
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return []
            with self._file.watching(self._wake, seen):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._news.wait()
        return []

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            shard = self._shards.get(delivery.shard)
            if shard is not None and shard.generation == delivery.generation:
                shard.progress.settle(delivery.position)

    async def flush(self) -> None:
        await self._commit()

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            shard = self._shards.get(delivery.shard)
            if shard is not None and shard.generation == delivery.generation:
                shard.hand_back(delivery)
        self._news.set()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._news.set()

    def owns(self, delivery: Delivery) -> bool:
        shard = self._shards.get(delivery.shard)
        return shard is not None and shard.generation == delivery.generation

    def on_revoke(self, callback: Revoked) -> None:
        self._revoked = callback

    async def lag(self) -> Mapping[str, int]:
        shards = list(self._shards.values())

        def read(connection: sqlite3.Connection) -> Mapping[str, int]:
            return {shard.name: topics.ahead(connection, shard.shard_id, shard.progress.settled) for shard in shards}

        return await self._file.run(read)

    async def shard_count(self) -> int:
        return await self._file.run(
            lambda connection: sum(len(topics.shards_of(connection, topic)) for topic in self._topics)
        )

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._news.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper.over])
        shards, self._shards = list(self._shards.values()), {}
        try:
            await self._release(shards, leave=True)
        except RelevoError as error:
            log.warning(
                "left group %s without saying so (%s): its shards wait for the lease to run out, at most %.0f s, and "
                "messages settled last are delivered again",
                *(self._group, error, self._options.lease_s),
            )
        finally:
            await self._file.release()

    # -- taking ---------------------------------------------------------------------------------------------------

    async def _fetch(self, max_messages: int) -> list[Delivery]:
        shards = [shard for shard in self._shards.values() if not shard.leaving]
        if len(shards) > 1:  # every shard is the first one at some time
            first = self._shards.pop(next(iter(self._shards)))
            self._shards[first.name] = first
        found: list[Delivery] = []
        for shard in shards:
            count = min(len(shard.returned), max_messages - len(found))
            found.extend(shard.returned[:count])
            del shard.returned[:count]
        if found:
            return found
        starts = [(shard, shard.next_position) for shard in shards]
        incarnation = self._incarnation

        def read(connection: sqlite3.Connection) -> tuple[int, list[tuple[Shard, int, list[topics.Row]]]]:
            pages, count, size = [], 0, 0
            if self._file.incarnation != incarnation:
                return -1, []
            for shard, start in starts:
                if count >= max_messages or size >= FETCH_BYTES_MAX:
                    break
                rows, read_bytes = topics.read(
                    connection, shard.shard_id, start, max_messages - count, FETCH_BYTES_MAX - size
                )
                count += len(rows)
                size += read_bytes
                pages.append((shard, start, rows))
            return groups.epoch(connection, self._group), pages

        epoch, pages = await self._file.run(read)
        if epoch != self._epoch:
            self._due.set()
        for shard, start, rows in pages:
            # Meanwhile it may have been revoked, or read by another take.
            if self._shards.get(shard.name) is shard and shard.next_position == start and not shard.leaving:
                found.extend(shard.deliver(rows))
        return found

    def _wake(self) -> None:
        """From the file's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._news.set)

    # -- the group ------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        look_at = self._loop.time() + self._options.lease_s / 3
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(min(COMMIT_EVERY_S, look_at - self._loop.time()), 0.001)):
                    await self._due.wait()
            try:
                await self._commit()
                if self._due.is_set() or self._loop.time() >= look_at:
                    self._due.clear()
                    look_at = self._loop.time() + self._options.lease_s / 3
                    await self._look()
                self.problem = None
            except Exception as error:  # noqa: BLE001 - logged there
                self.problem = failed(error, self._group, "shards", log)

    async def _look(self) -> None:
        async with self._looking:
            view, incarnation = await self._file.run(self._see)
            self._epoch, self._missing = view.epoch, list(view.missing)
            take_over(self._shards, view.owned, self._generations, self._group, incarnation != self._incarnation)
            self._incarnation = incarnation
            self._file.changed()  # other members in this process look too
            excess = [shard for shard in self._shards.values() if shard.shard_id in view.excess]
            if excess:
                await self._give_back(excess)

    def _see(self, connection: sqlite3.Connection) -> tuple[groups.View, int]:
        lease_s, from_start = self._options.lease_s, self._from_start
        view = groups.look(connection, self._group, self._member, self._topics, lease_s=lease_s, from_start=from_start)
        return view, self._file.incarnation

    async def _give_back(self, shards: Sequence[Shard]) -> None:
        """Let the consumer finish there, within a lease, then release."""
        for shard in shards:
            shard.leaving = True
        names = [shard.name for shard in shards]
        await let_finish(self._revoked, names, self._options.lease_s, self._group, "shards", log)
        for shard in shards:
            self._shards.pop(shard.name, None)
        await self._release(shards, leave=False)

    async def _release(self, shards: Sequence[Shard], *, leave: bool) -> None:
        positions = [(shard.shard_id, shard.lease, shard.progress.settled) for shard in shards]
        incarnation = self._incarnation

        def release(connection: sqlite3.Connection) -> None:
            ours = positions if self._file.incarnation == incarnation else []
            groups.release(connection, self._group, self._member, ours, leave=leave)

        await self._file.run(release)
        self._file.changed()

    async def _commit(self) -> None:
        dirty = [shard for shard in self._shards.values() if shard.progress.unsaved]
        if not dirty:
            return
        positions = [(shard.shard_id, shard.lease, shard.progress.settled) for shard in dirty]
        incarnation = self._incarnation

        def commit(connection: sqlite3.Connection) -> Collection[int]:
            if self._file.incarnation != incarnation:
                return [shard_id for shard_id, _, _ in positions]
            return groups.commit(connection, self._group, self._member, positions)

        lost = await self._file.run(commit)
        for shard, (shard_id, _, position) in zip(dirty, positions, strict=True):
            if shard_id not in lost:
                shard.progress.saved = max(shard.progress.saved, position)
            elif self._shards.get(shard.name) is shard:
                del self._shards[shard.name]
                self._due.set()

    def _create_topics(self, connection: sqlite3.Connection) -> None:
        if all(topics.shards_of(connection, topic) for topic in self._topics):
            return
        with writing(connection):
            for topic in self._topics:
                topics.create(connection, topic, self._options.partitions)
