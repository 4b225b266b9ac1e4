"""Relevo's own clock on a handler's transaction: begin, inbox, commit, rollback and giving the connection back.

The handler's statements are its own and may take any time. A connection that does not answer one of Relevo's is ended
from outside. Where that is not possible (a pool's connect, a driver Relevo does not know) the run is given up without
waiting for it; the inbox row keeps it from having an effect twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from relevo.clients.watch import Watch, Watched
from relevo.consumer.work import D, Steps
from relevo.errors import UnreachableError
from relevo.script import Statement
from relevo.storage.transactions import Transactions


class Unanswered(UnreachableError):
    """The run was given up: there was no answer within the bound."""


@asynccontextmanager
async def clocked(watch: Watch, unit: Any, what: str) -> AsyncIterator[Watched]:
    """Around the use of ``unit`` by one task, or by a thread that it waits for. Raises ``Unanswered`` when that was
    given up."""
    loop = asyncio.get_running_loop()
    bound = asyncio.timeout(None)

    def end() -> None:
        if unit.waits_for_pool():
            watched.overdue, watched.looks = False, 0
        elif not unit.sever() or watched.looks > 2 * watched.looks_max:
            bound.reschedule(loop.time())

    watched = watch.lend(end)
    try:
        async with bound:
            yield watched
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise Unanswered(f"{what} had no answer within {watch.answer_s:g} s and was given up") from error
    finally:
        watch.back(watched)


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
