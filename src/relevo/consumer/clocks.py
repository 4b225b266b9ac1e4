"""Relevo's own clock on a handler's transaction: begin, inbox, commit, rollback and giving the connection back.

The handler's statements are its own and may take any time. A connection that does not answer one of Relevo's is ended
from outside. Where that is not possible (a pool's connect, a driver Relevo does not know) the run is given up without
waiting for it; the inbox row keeps it from having an effect twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from relevo.clients.watch import Watch, Watched
from relevo.consumer.work import D, Steps
from relevo.errors import UnreachableError
from relevo.script import Statement
from relevo.storage.transactions import Transactions


class Unanswered(UnreachableError):
    """The run was given up: there was no answer within the bound."""


class Clocked:
    """Around the use of ``unit`` by one task, or by a thread that it waits for; gives the ``Watched`` of it. Raises
    ``Unanswered`` when that was given up."""

    __slots__ = ("_bound", "_unit", "_watch", "_watched", "_what")

    def __init__(self, watch: Watch, unit: Any, what: str) -> None:
        self._watch, self._unit, self._what = watch, unit, what
        self._bound = asyncio.timeout(None)

    async def __aenter__(self) -> Watched:
        await self._bound.__aenter__()
        self._watched = self._watch.lend(self._end)
        return self._watched

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.back(self._watched)
        try:
            await self._bound.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise Unanswered(f"{self._what} had no answer within {self._watch.answer_s:g} s and was given up") from late

    def _end(self) -> None:
        watched = self._watched
        if self._unit.waits_for_pool():
            watched.overdue, watched.looks = False, 0
        elif not self._unit.sever() or watched.looks > 2 * watched.looks_max:
            self._bound.reschedule(asyncio.get_running_loop().time())


def bounded(steps: Steps[D], idle_ms: int) -> Steps[D]:
    """``steps``, in a transaction that the server ends when it is idle for ``idle_ms``: this process is frozen, or its
    handler waits for something else than the database. Off unless configured, for the latter's sake."""
    yield Statement("inbox.bound_idle", {"idle_ms": str(idle_ms)})
    return (yield from steps)


def forgetting(sources: Iterable[Transactions]) -> Callable[[str | None], None]:
    """What to do when the database is found not to answer: its connections that lie idle do not either."""
    distinct = set(sources)

    def changed(reason: str | None) -> None:
        for source in distinct if reason is not None else ():
            source.forget_idle()

    return changed
