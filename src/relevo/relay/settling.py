"""Pages that went through clean, on their way into the books: in order, several in one commit.

While one settlement is under way the pages that land go into the next one together. A relay that follows closely lands
a small page every few milliseconds, so the next one also waits a moment for company, unless somebody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from relevo.ports.source import Settled, Source, Taken

COMPANY = 1_000
"""Messages of clean pages that may wait for the settlement under way."""
EVERY_S = 0.02
"""From the beginning of one settlement to that of the next at least, unless somebody waits for it or …"""
MANY = 250
"""… so many messages do. A commit for each page was a sixth of the time of a relay that follows
(docs/explanation/performance.md); what a crash in these milliseconds repeats had just been sent."""


@dataclass
class Settling:
    """For one task. An error of the database comes through where the settlement is waited for or the next page is
    added; its pages are given back to the source then, those behind them by ``forget``."""

    source: Source
    on_settled: Callable[[Settled], None]
    task: asyncio.Task[None] | None = None
    """The settlement under way, if there is one; it may have ended."""
    _landed: list[Taken] = field(default_factory=list)
    _began_at: float = -EVERY_S
    """When the last one began, by the loop's clock."""
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """The one under way waits for no company."""

    async def room_for(self, messages: int) -> None:
        """Wait until a page of so many ``messages`` may wait with the others."""
        if self._waiting + messages > COMPANY:
            await self.all()

    async def add(self, taken: Taken) -> None:
        """Settle this page too: with the others, soon."""
        self._landed.append(taken)
        if self.task is None or self.task.done():
            await self.all()
            self._hurry.clear()
            self.task = asyncio.create_task(self._settle())
        if self._waiting >= MANY:
            self._hurry.set()

    async def all(self) -> None:
        """Wait until everything is settled."""
        task, self.task = self.task, None
        if task is not None:
            if not task.done():
                self._hurry.set()
            await task

    async def ended(self) -> None:
        """Take note of a settlement that has ended."""
        if self.task is not None and self.task.done():
            await self.all()

    async def forget(self) -> None:
        """After an error: wait for what is under way; the source reads the rest again."""
        self._hurry.set()
        task, self.task = self.task, None
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        landed, self._landed = self._landed, []
        for taken in landed:
            await self.source.release(taken)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    @property
    def _waiting(self) -> int:
        return sum(map(len, self._landed))

    async def _settle(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._landed:
            early_s = self._began_at + EVERY_S - clock()
            if early_s > 0 and not self._hurry.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(early_s):
                        await self._hurry.wait()
            self._began_at = clock()
            self._hurry.clear()
            pages, self._landed = self._landed, []
            try:
                settled = await self.source.settle_all(pages)
            except Exception:
                for taken in pages:
                    await self.source.release(taken)
                raise
            self.on_settled(settled)
