"""psycopg's asynchronous connection, taking in all that has arrived at each turn of the loop.

psycopg reads from the socket once whenever the loop comes round. A loop that hands 250 messages to a broker's client
between two turns so takes in a page of 1 MB in 128 turns, and the server waits meanwhile with the socket full: 190
ms for a page beside such a loop, 22 with this (2,000 rows of 300 bytes, PostgreSQL 15 on the same two cores).
"""

from __future__ import annotations

import asyncio
import functools
import select
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from relevo.bounds import CLEANUP_S
from relevo.clients.cancelling import cancel

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

TURN_S: Final = 0.005
"""So long at most at a stretch: other tasks wait meanwhile."""
_INTERVAL_S: Final = 0.1
"""psycopg's own: how often a wait looks at the connection without being woken."""


@functools.cache
def connection_class() -> type[psycopg.AsyncConnection[Any]]:
    """A function, since psycopg need not be installed."""
    import psycopg
    from psycopg import waiting

    class EagerConnection(psycopg.AsyncConnection[Any]):
        async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            """As psycopg's, which waits for the end of a statement whose task was cancelled: without bound, or for ten
            seconds (from 3.3.5)."""
            if not args:
                kwargs.setdefault("interval", _INTERVAL_S)
            steps = eagerly(gen, self.pgconn.socket, waiting.WAIT_R, waiting.READY_R)
            try:
                return await waiting.wait_async(steps, self.pgconn.socket, *args, **kwargs)
            except asyncio.CancelledError:
                if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    await self._leave(steps)
                raise

        async def _leave(self, steps: Generator[Any, Any, Any]) -> None:
            """Wait until the server has ended the statement, within bounds, and close the connection. It is not used
            again: a cancel request that arrives after the end of its statement would cancel the next one."""
            cancel(self.pgconn)
            try:
                async with asyncio.timeout(CLEANUP_S):
                    await waiting.wait_async(steps, self.pgconn.socket, interval=_INTERVAL_S)
            except (psycopg.Error, TimeoutError):
                pass  # cancelled as asked for, lost, or too late
            finally:
                self.pgconn.finish()

    return EagerConnection


def eagerly(steps: Generator[Any, Any, T], fileno: int, to_read: Any, readable: Any) -> Generator[Any, Any, T]:
    """``steps``, one of psycopg's operations, which yields what it waits for on the socket ``fileno``. While that is
    ``to_read`` and there is something to be read, it is told so at once."""
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send((yield wanted))
            until = time.monotonic() + TURN_S
            while wanted == to_read and poll.poll(0) and time.monotonic() < until:
                wanted = steps.send(readable)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
