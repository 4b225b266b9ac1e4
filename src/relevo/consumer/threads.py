"""Threads for plain handlers. Daemons, unlike those of ``ThreadPoolExecutor``, which the interpreter joins when it
exits: a second signal must leave at once, also past a handler that hangs. The server rolls such a transaction back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class HandlerThreads:
    """At most ``count`` threads, started when first needed. ``run`` from one event loop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    async def run(self, work: Callable[[], T]) -> T:
        """``work()`` in a thread. When cancelled, a ``work`` that has begun goes on, and nobody hears of its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._count:
            thread = threading.Thread(target=self._serve, name=f"relevo-handler-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((loop, future, work))
        try:
            return await future
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Let the threads end once they are free."""
        for _ in self._threads:
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, future, work = job
            if future.cancelled():
                continue
            try:
                result, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - carried to whoever awaits it
                result, error = None, raised
            try:
                loop.call_soon_threadsafe(_deliver, future, result, error)
            except RuntimeError:
                return  # the loop is closed: the process is leaving


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
