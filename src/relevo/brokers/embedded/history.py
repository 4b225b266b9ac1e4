"""Reading the embedded broker's file again, apart from any group."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from relevo.brokers.embedded import topics
from relevo.brokers.embedded.file import BrokerFile
from relevo.brokers.embedded.groups import Owned
from relevo.brokers.embedded.shard import Shard
from relevo.errors import ConfigError
from relevo.ports.broker import Delivery

PAGE_BYTES = 8_000_000


class EmbeddedHistory:
    """The ``History`` port."""

    def __init__(self, file: BrokerFile) -> None:
        self._file = file
        self._left: list[tuple[Shard, int]] = []
        self._closed = False

    async def open(self, names: Sequence[str], since: datetime | None, after: Mapping[str, int]) -> None:
        self._left = await self._file.run(lambda connection: _begin(connection, names, since, after))

    async def take(self, max_messages: int) -> Sequence[Delivery]:
        while self._left:
            shard, end = self._left[0]
            start = shard.next_position
            rows, _ = await self._file.run(
                lambda connection, shard=shard, start=start: topics.read(  # type: ignore[misc]
                    connection, shard.shard_id, start, max_messages, PAGE_BYTES
                )
            )
            rows = [row for row in rows if row[0] < end]
            if rows:
                return list(shard.deliver(rows))
            self._left.pop(0)
        return []

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._file.release()


def _begin(
    connection: sqlite3.Connection, names: Sequence[str], since: datetime | None, after: Mapping[str, int]
) -> list[tuple[Shard, int]]:
    found = []
    since_ms = 0 if since is None else int(since.astimezone(UTC).timestamp() * 1000)
    for topic in names:
        shards = topics.shards_of(connection, topic)
        if not shards:
            raise ConfigError(f"there is no topic {topic!r} at this broker")
        for part, shard_id in enumerate(shards):
            start = after.get(f"{topic}/{part}", -1) + 1
            if f"{topic}/{part}" not in after and since is not None:
                row = connection.execute(
                    "select min(position) from records where shard_id = ? and created_ms >= ?", (shard_id, since_ms)
                ).fetchone()
                start = topics.next_position(connection, shard_id) if row[0] is None else row[0]
            end = topics.next_position(connection, shard_id)
            owned = Owned(shard_id=shard_id, topic=topic, part=part, committed=start, generation=0, end=end)
            found.append((Shard(owned, 0), end))
    return found
