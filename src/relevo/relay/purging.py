"""Purging, batch by batch: what `relevo purge` and the relay's schedule have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from relevo.ports.database import Database
from relevo.runtime.probes import probe
from relevo.settings import Settings
from relevo.storage import journaling, processes, purging
from relevo.storage.purging import Mode, Place

DAY_S = 86_400.0


@dataclass
class Purged:
    """Rows removed, or with ``mode="count"`` those that would be."""

    outbox: int = 0
    inbox: int = 0
    journal: int = 0

    @property
    def total(self) -> int:
        return self.outbox + self.inbox + self.journal


@dataclass
class Purge:
    """One run. ``between`` is awaited after every batch: it may wait, report, or raise to stop."""

    database: Database
    settings: Settings
    mode: Mode
    between: Callable[[Purged], Awaitable[None]]
    done: Purged

    async def outbox(self) -> None:
        """Settled longer than ``retention.outbox_days`` ago."""
        days = self.settings.retention.outbox_days
        if not days:
            return
        before_s = await self.database.run(purging.now(), read_only=True) - days * DAY_S
        after, over = -(2**63), False
        while not over:
            batch = await self.database.run(
                purging.outbox(self.database.dialect, self.mode, before_s, after, self._limit),
                read_only=self.mode == "count",
            )
            after, over = batch.last, batch.over
            self.done.outbox += batch.gone
            await self._next()

    async def inbox(self) -> None:
        """Processed longer than ``consumer.inbox_window_s`` ago."""
        now_s = await self.database.run(purging.now(), read_only=True)
        before_s = now_s - self.settings.consumer.inbox_window_s
        for consumer in await self.database.run(purging.consumers(), read_only=True):
            place, seen = Place(), self._limit
            while seen == self._limit:
                batch = await self.database.run(
                    purging.inbox(self.database.dialect, self.mode, consumer, before_s, place, self._limit),
                    read_only=self.mode == "count",
                )
                seen = batch.seen
                place = purging.past_the_young(batch.last, before_s, now_s)
                self.done.inbox += batch.gone
                await self._next()

    async def journal(self) -> None:
        """What processes that died left behind, as old as the inbox's window."""
        if self.mode == "count":
            return
        gone = self._limit
        while gone == self._limit:
            gone = await self.database.run(journaling.purge(self.settings.consumer.inbox_window_s, self._limit))
            self.done.journal += gone
            await self._next()
        await self.database.run(processes.forget_dead())

    @property
    def _limit(self) -> int:
        return self.settings.retention.batch

    async def _next(self) -> None:
        probe("purge.batch")
        await self.between(self.done)
        if self.mode != "count":
            await asyncio.sleep(self.settings.retention.pause_s)
