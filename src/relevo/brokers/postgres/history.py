"""Reading the outbox again, apart from any group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from relevo.brokers.postgres.link import Link
from relevo.brokers.postgres.rows import deliveries
from relevo.errors import ConfigError
from relevo.ports.broker import Delivery
from relevo.storage import grouping

SHARD: Final = "log"
"""All of it is one shard here: it is read by ``seq``."""


class PostgresHistory:
    """The ``History`` port. What commits while it is read may be in it or not, and comes to the groups in any case."""

    def __init__(self, link: Link, topics: Sequence[str], *, ask: bool) -> None:
        """``ask``: topics must have been made by name."""
        self._link = link
        self._topics = list(dict.fromkeys(topics))
        self._ask = ask
        self._after = 0
        self._end = 0
        self._closed = False

    async def open(self, since: datetime | None, after: Mapping[str, int]) -> None:
        await self._link.check()
        if self._ask and (unknown := await self._link.read(grouping.unknown(self._topics))):
            raise ConfigError(f"there is no topic {unknown[0]!r} at this broker")
        self._end = await self._link.read(grouping.history_end())
        if SHARD in after:
            self._after = after[SHARD]
        elif since is not None:
            self._after = await self._link.read(grouping.history_begin(since))

    async def take(self, max_messages: int) -> Sequence[Delivery]:
        script = grouping.history(self._topics, self._after, self._end, max_messages)
        rows = await self._link.read(script)
        if rows:
            self._after = int(rows[-1][0])
        return deliveries(rows, SHARD)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._link.aclose()
