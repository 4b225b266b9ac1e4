"""Threads for plain handlers. Daemons, unlike those of ``ThreadPoolExecutor``, which the interpreter joins when it
exits: a second signal must leave at once, also past a handler that hangs. The server rolls such a transaction back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

LOST_MAX: Final = 64
"""Threads that were given up and have not ended; beyond that, those of new ones count."""


@dataclass(slots=True)
class _Job:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any]
    thread: threading.Thread | None = None
    """That runs it, once one does."""


class HandlerThreads:
    """At most ``count`` threads, started when first needed. ``run`` from one event loop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._lost: set[threading.Thread] = set()
        self._busy = 0

    async def run(self, work: Callable[[], T]) -> T:
        """``work()`` in a thread. When cancelled, a ``work`` that has begun goes on, and its result is dropped. Its
        thread may hang for ever, so another takes its place."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = _Job(loop, future, work)
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._count:
            self._start()
        self._jobs.put(job)
        try:
            return await future
        except asyncio.CancelledError:
            if job.thread is not None and len(self._lost) < LOST_MAX:
                self._lost.add(job.thread)
                self._threads.discard(job.thread)
                if self._busy > len(self._threads):
                    self._start()  # for those that wait in the queue
            raise
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Let the threads end once they are free."""
        for _ in self._threads:
            self._jobs.put(None)

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"relevo-handler-{len(self._threads)}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _serve(self) -> None:
        me = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            if job.future.cancelled():
                continue
            job.thread = me
            try:
                result, error = job.work(), None
            except BaseException as raised:  # noqa: BLE001 - carried to whoever awaits it
                result, error = None, raised
            try:
                job.loop.call_soon_threadsafe(_deliver, job.future, result, error)
            except RuntimeError:
                return  # the loop is closed: the process is leaving
            if me in self._lost:
                self._lost.discard(me)
                return


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
