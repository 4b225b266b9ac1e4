"""Scheduling by key: messages of one key one after the other, different keys side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741 - an item


class KeyQueues(Generic[I]):
    """One task per key that has something to do. ``work`` must not raise but for cancellation; an exception it lets
    through is kept in ``failure`` and stops the engine. What waits is bounded by whoever calls ``put``."""

    def __init__(self, work: Callable[[I], Awaitable[None]], on_failure: Callable[[BaseException], None]) -> None:
        self._work = work
        self._on_failure = on_failure
        self._queues: dict[Hashable, deque[I]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._drained = asyncio.Event()
        self._drained.set()

    def put(self, key: Hashable, item: I) -> None:
        """Queue an item behind those of its key."""
        self._count += 1
        self._drained.clear()
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(item)
            return
        self._queues[key] = deque([item])
        task = asyncio.create_task(self._run(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __len__(self) -> int:
        """Items queued or under way."""
        return self._count

    async def join(self) -> None:
        """Wait until nothing is queued or under way."""
        await self._drained.wait()

    async def cancel(self) -> None:
        """Cancel what is under way and wait for it to end; what was queued is dropped."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queues.clear()
        self._count = 0
        self._drained.set()

    async def _run(self, key: Hashable) -> None:
        queue = self._queues[key]
        try:
            while queue:
                try:
                    await self._work(queue.popleft())
                finally:
                    self._count -= 1
        except Exception as error:  # noqa: BLE001 - handed to the engine, which ends with it
            self._on_failure(error)
        finally:
            self._count -= len(queue)
            del self._queues[key]
            if self._count == 0:
                self._drained.set()
