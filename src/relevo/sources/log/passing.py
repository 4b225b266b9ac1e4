"""The source ``log`` where there is nothing to hand over: consumers read this outbox themselves."""

from __future__ import annotations

from collections.abc import Collection

from relevo.ports.source import Taken
from relevo.sources.log.source import NOTHING, LogSource
from relevo.storage import windowing
from relevo.storage.cursors import Cursor


class PassingSource(LogSource):
    """Gives no message. Its cursors follow what is committed, so that retention asks the consumers' groups alone, and a
    relay that hands over to a broker one day begins where this one stopped."""

    async def take(self, max_messages: int, max_bytes: int, *, without_topics: Collection[str] = ()) -> Taken:
        if not self._lanes:
            return NOTHING
        if self._stale:
            await self._load()
        window = await self._database.run(windowing.window(self._timeline), read_only=True)
        self._timeline = window.timeline
        self._windows.assign(
            {
                name: Cursor(window.snapshot, max(window.top, cursor.high_water))
                for name, cursor in self._windows.settled.items()
            }
        )
        await self._bring_up_at_rest()
        return NOTHING
