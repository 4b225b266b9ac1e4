"""Who may run at once: ordinary messages side by side, a suspect alone in the whole process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """A lock with two sides. Whoever waits to be ``alone`` keeps new ordinary work out, so it is not starved.

    One per process, shared by its consumers: what kills the process kills them all. For one event loop.
    """

    def __init__(self) -> None:
        self._running = 0
        self._waiting_alone = 0
        self._alone = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone and not self._waiting_alone)
            self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            await self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._changed:
            self._waiting_alone += 1
            try:
                await self._changed.wait_for(lambda: not self._alone and not self._running)
                self._alone = True
            finally:
                self._waiting_alone -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            self._alone = False
            await self._wake()

    async def _wake(self) -> None:
        """Shielded: a cancelled runner must not leave the others asleep."""
        await asyncio.shield(asyncio.ensure_future(self._notify()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
