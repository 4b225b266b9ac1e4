"""Tasks that have a reader: one that ends and should not have is logged with its traceback, shown, and started again.

``asyncio`` keeps the exception of a task until it is asked for, which may be never. Nothing in Relevo creates a
task without a reader (``tests/architecture/test_tasks.py``): a loop is kept by ``Tasks.keep``, a single piece of work
is started by ``Tasks.once``, or its creator awaits it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from relevo.policy import Backoff
from relevo.total import name_of, text_of_error

T = TypeVar("T")

RESTART: Final = Backoff(attempts=1, base=timedelta(milliseconds=200), cap=timedelta(seconds=30))
"""Between the end of a task and its next start."""
STEADY_S: Final = 5.0
"""A task that was started again counts as alive once it has run for so long."""


class Kept:
    """One task of ``Tasks.keep``. ``over``: resolved when it has ended for good; it never carries an exception."""

    def __init__(
        self, tasks: Tasks, name: str, make: Callable[[], Awaitable[None]], may_end: Callable[[], bool]
    ) -> None:
        self._tasks = tasks
        self._name = name
        self._make = make
        self._may_end = may_end
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._unwanted = False
        self._later: asyncio.TimerHandle | None = None
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._start()

    def cancel(self) -> None:
        """End it; this is the only cancellation that counts as wanted."""
        self._unwanted = True
        if self._later is not None:
            self._later.cancel()
        if self._task.done():
            self._finish()
        else:
            self._task.cancel()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run(), name=f"relevo {self._tasks.who}: {self._name}")
        self._task.add_done_callback(self._ended)
        self._later = self._loop.call_later(STEADY_S, self._steady) if self._failures else None

    async def _run(self) -> None:
        await self._make()

    def _steady(self) -> None:
        self._failures = 0
        self._tasks.ended.pop(self._name, None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._later is not None:
            self._later.cancel()
        error = None if task.cancelled() else task.exception()
        if self._unwanted or (error is None and not task.cancelled() and self._may_end()):
            if error is not None:
                self._tasks.log.error("%s: %s failed while it was ended", *self._names, exc_info=error)
            self._finish()
            return
        self._failures += 1
        why = "was cancelled by other code" if task.cancelled() else "returned" if error is None else _text(error)
        delay_s = RESTART.delay_s(self._failures)
        self._tasks.ended[self._name] = f"it ended and is started again: {why}"
        self._tasks.log.error(
            "%s: the task %s ended and is started again in %.1f s: %s", *self._names, delay_s, why, exc_info=error
        )
        self._later = self._loop.call_later(delay_s, self._start)

    def _finish(self) -> None:
        self._tasks.forget(self, self._name)
        if not self.over.done():
            self.over.set_result(None)

    @property
    def _names(self) -> tuple[str, str]:
        return self._tasks.who, self._name


class Tasks:
    """The tasks of one engine. ``who``: whose they are, for the log. ``ended``: tasks that ended unexpectedly and do
    not run steadily again, with the reason: while there are any, the process is not live. For one event loop."""

    def __init__(self, who: str, log: logging.Logger) -> None:
        self.who = who
        self.log = log
        self.ended: dict[str, str] = {}
        self._kept: set[Kept] = set()
        self._once: set[asyncio.Task[Any]] = set()

    @property
    def live(self) -> bool:
        return not self.ended

    @property
    def problems(self) -> Mapping[str, str]:
        """For readiness: ``task NAME`` and why."""
        return {f"task {name}": why for name, why in self.ended.items()}

    def keep(
        self, name: str, make: Callable[[], Awaitable[None]], *, may_end: Callable[[], bool] = lambda: False
    ) -> Kept:
        """Run ``make()`` in a task, and again whenever it ends: by an exception, because other code cancelled it, or by
        returning while ``may_end`` says no."""
        kept = Kept(self, name, make, may_end)
        self._kept.add(kept)
        return kept

    def once(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` in a task; an exception is logged with its traceback."""
        task = asyncio.get_running_loop().create_task(work, name=f"relevo {self.who}: {name}")
        self._once.add(task)
        task.add_done_callback(self._once.discard)
        read(task, self.log, f"{self.who}: {name}")
        return task

    def forget(self, kept: Kept, name: str) -> None:
        """It has ended for good."""
        self._kept.discard(kept)
        self.ended.pop(name, None)

    async def aclose(self) -> None:
        """Cancel all that is left and wait until it has ended."""
        ends = [*(kept.over for kept in self._kept), *self._once]
        for kept in list(self._kept):
            kept.cancel()
        for task in self._once:
            task.cancel()
        if ends:
            await asyncio.wait(ends)


def read(task: asyncio.Task[Any], log: logging.Logger, what: str) -> None:
    """Log the exception ``task`` ends with."""
    task.add_done_callback(partial(_say, log, what))


def _say(log: logging.Logger, what: str, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed: %s", what, _text(error), exc_info=error)


def _text(error: BaseException) -> str:
    name = name_of(type(error)).rpartition(".")[2]
    return f"{name}: {text_of_error(error).partition(chr(10))[0][:500]}"
