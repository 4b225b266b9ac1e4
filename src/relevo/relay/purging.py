"""Purging, batch by batch: what `relevo purge` and the relay's schedule have in common."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from relevo.clients.sqlstate import sqlstates
from relevo.ports.database import Database, Dialect
from relevo.runtime.patience import of_data, reason_of
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.settings import Settings
from relevo.storage import journaling, processes, purging
from relevo.storage.purging import Mode, Place

T = TypeVar("T")
Walked = Callable[[Dialect, Mode, float, int, int], Script[purging.Batch]]

log = logging.getLogger("relevo.relay")

DAY_S = 86_400.0
STATEMENT_S = 1.0
"""No statement of a purge takes longer on PostgreSQL: the server ends it, and the next batch is half as large."""
_ENDED = "57014"  # query_canceled


@dataclass(frozen=True, slots=True)
class Fate:
    """Of one partition of the outbox. ``why`` it stays: empty when it goes, or went with its ``rows``."""

    name: str
    rows: int
    why: str = ""


@dataclass
class Purged:
    """Rows removed, or with ``mode="count"`` those that would be; those of dropped partitions are in ``outbox`` too.
    ``cut``: a partition was closed, or would be."""

    outbox: int = 0
    inbox: int = 0
    journal: int = 0
    effects: int = 0
    partitions: list[Fate] = field(default_factory=list)
    cut: bool = False

    @property
    def total(self) -> int:
        return self.outbox + self.inbox + self.journal + self.effects

    @property
    def nothing(self) -> bool:
        return not self.total and not self.cut and all(fate.why for fate in self.partitions)


@dataclass
class Purge:
    """One run. ``between`` is awaited after every batch: it may wait, report, or raise to stop."""

    database: Database
    settings: Settings
    mode: Mode
    between: Callable[[Purged], Awaitable[None]]
    done: Purged
    limit: int = field(init=False)
    took_s: float = field(init=False, default=0.0)
    """Of the last batch."""

    def __post_init__(self) -> None:
        self.limit = self.settings.retention.batch

    async def outbox(self) -> None:
        """Settled longer than ``retention.outbox_days`` ago."""
        async for gone in self._walk("outbox", self.settings.retention.outbox_days, purging.outbox):
            self.done.outbox += gone
            await self.next()

    async def inbox(self) -> None:
        """Processed longer than ``consumer.inbox_window_s`` ago."""
        before_s = await self.before(self.settings.consumer.inbox_window_s)
        now_s = before_s + self.settings.consumer.inbox_window_s
        for consumer in await self.batch(lambda limit: purging.consumers()):
            place: Place | None = Place()
            while place is not None:
                place = await self._inbox(consumer, place, before_s, now_s)

    async def _inbox(self, consumer: str, place: Place, before_s: float, now_s: float) -> Place | None:
        """One batch of one consumer; returns where to go on, ``None`` at the end."""
        asked = 0

        def script(limit: int) -> Script[purging.InboxBatch]:
            nonlocal asked
            asked = limit
            return purging.inbox(self.database.dialect, self.mode, consumer, before_s, place, limit)

        batch = await self.batch(script)
        self.done.inbox += batch.gone
        await self.next()
        over = batch.seen < asked or batch.last == place
        return None if over else purging.past_the_young(batch.last, before_s, now_s)

    async def journal(self) -> None:
        """What processes that died left behind, as old as the inbox's window."""
        if self.mode == "count":
            return
        gone = True
        while gone:
            removed = await self.batch(lambda limit: journaling.purge(self.settings.consumer.inbox_window_s, limit))
            gone = removed > 0
            self.done.journal += removed
            await self.next()
        await self.batch(lambda limit: processes.forget_dead())

    async def effects(self) -> None:
        """Done longer than ``retention.effects_days`` ago; of those alone."""
        async for gone in self._walk("effects", self.settings.retention.effects_days, purging.effects):
            self.done.effects += gone
            await self.next()

    async def _walk(self, what: str, days: float, script: Walked) -> AsyncIterator[int]:
        """Along a table by its number; yields how many went, batch by batch. 0 days: for ever."""
        before_s = await self.before(days * DAY_S)
        after, over = -(2**63), not days
        while not over:
            try:
                batch = await self.batch(partial(script, self.database.dialect, self.mode, before_s, after))
            except Exception as error:
                if not of_data(error):
                    raise
                batch = await self._pass(what, partial(script, self.database.dialect, "count", before_s, after), error)
            after, over = batch.last, batch.over
            yield batch.gone

    async def _pass(self, what: str, count: Callable[[int], Script[purging.Batch]], error: Exception) -> purging.Batch:
        """The next row cannot be removed, or not be archived: it stays, and the others go on."""
        row = await self.batch(lambda limit: count(1), read_only=True)
        log.error(
            "retention: row %d of the %s stays, since the database refuses to remove or archive it; the others go on: "
            "%s",
            *(row.last, what, reason_of(error)),
        )
        self.limit = self.settings.retention.batch
        return replace(row, gone=0)

    async def before(self, age_s: float) -> float:
        """The moment ``age_s`` ago by the database's clock."""
        return await self.batch(lambda limit: purging.now(), read_only=True) - age_s

    async def batch(self, script: Callable[[int], Script[T]], *, read_only: bool = False) -> T:
        """One transaction of at most ``limit`` rows. What the server ends for taking too long, or refuses because of a
        row, is tried again by half.

        Raises as the database does, also when a single row takes too long.
        """
        while True:
            began = time.monotonic()
            try:
                return await self.database.run(
                    script(self.limit), read_only=read_only or self.mode == "count", statement_timeout_s=STATEMENT_S
                )
            except Exception as error:
                if self.limit == 1 or not (_ENDED in sqlstates(error) or of_data(error)):
                    raise
                self.limit = max(1, self.limit // 2)
            finally:
                self.took_s = time.monotonic() - began

    async def next(self) -> None:
        probe("purge.batch")
        await self.between(self.done)
        if self.mode != "count":
            await asyncio.sleep(self.rest_s)

    @property
    def rest_s(self) -> float:
        """Until the next batch: on a busy server as long as the last one took, so that at least half of the time is for
        others."""
        pause_s = self.settings.retention.pause_s
        return max(pause_s, self.took_s) if pause_s else 0.0
