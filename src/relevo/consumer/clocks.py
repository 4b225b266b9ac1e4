"""Relevo's own clock on a handler's transaction: begin, inbox, commit, rollback and giving the connection back.

The handler's statements are its own and may take any time. A connection that does not answer one of Relevo's is ended
from outside. Where that is not possible (a pool's connect, a driver Relevo does not know) the run is given up without
waiting for it; the inbox row keeps it from having an effect twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from relevo.clients.watch import Watch, Watched
from relevo.errors import UnreachableError


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
