"""psycopg's pipeline mode around handlers: statements go out one after the other, and nobody waits for the answers.

Nor is each sent by itself: psycopg would wait for the socket after every one, which costs more than the statement. A
few are held and go out together, so that the server works on them while the next ones are made. This uses psycopg's own
seams between its pipeline and its cursors, which are not public; a test says when they have changed.

A handler must not notice. Fetching waits by itself, and so does the end of a ``conn.transaction()`` block. What would
answer wrongly, as if the statement had done nothing, is watched: ``rowcount`` and its like before the result is there.
A plain cursor then waits for it; an asynchronous one cannot inside an attribute, so the run ends with ``PipelineError``
and is repeated without a pipeline.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from relevo.storage.transactions.base import PipelineError
from relevo.storage.transactions.statements import ends_transaction

__all__ = ["HELD_MAX", "check", "ends_transaction", "let_go", "pipeline_on", "watch"]

HELD_MAX = 16
"""Statements that go out together."""
_UNREADY = "relevo_unready"
_NOT_READY = (
    "the result of this statement is not there yet: Relevo sent it in a pipeline. Fetch first, or declare the consumer "
    "with pipeline=False; this run is repeated without one"
)


def pipeline_on(connection: Any) -> Any:
    """A pipeline to be entered, as ``connection.pipeline()``. ``leave`` it by ``let_go``."""
    pipeline = connection._pipeline = _held(_async_of(connection))(connection)
    return pipeline


def let_go(connection: Any) -> None:
    """The pipeline is left."""
    connection._pipeline = None


def watch(connection: Any) -> None:
    """Cursors made from now on are watched, until ``PsycopgWatch`` gives the connection its own factory back."""
    connection.cursor_factory = _watched(connection.cursor_factory)


def check(connection: Any) -> None:
    """Raise ``PipelineError`` if somebody was refused a result, even where the handler swallowed that."""
    if vars(connection).pop(_UNREADY, False):
        raise PipelineError(_NOT_READY)


def _async_of(connection: Any) -> bool:
    from psycopg import AsyncConnection

    return isinstance(connection, AsyncConnection)


@cache
def _held(asynchronous: bool) -> Any:
    from psycopg import AsyncPipeline, Pipeline

    base: Any = AsyncPipeline if asynchronous else Pipeline

    class Held(base):  # type: ignore[misc]
        _holding = False

        def relevo_hold(self, work: Any) -> Any:
            """A statement of a cursor, which need not go out at once."""
            self._holding = len(self.command_queue) < HELD_MAX
            try:
                return (yield from work)
            finally:
                self._holding = False

        def _communicate_gen(self) -> Any:
            if not self._holding:
                yield from self._send()

        def _fetch_gen(self, *, flush: bool) -> Any:
            if self.command_queue:
                yield from self._send()
            yield from super()._fetch_gen(flush=flush)

        def _send(self) -> Any:
            """All but the last into libpq's buffer at once; psycopg would look at the socket before each."""
            queue = self.command_queue
            while len(queue) > 1:
                queue.popleft()()
            yield from super()._communicate_gen()

    return Held


@cache
def _watched(base: Any) -> Any:
    class Watched(base):  # type: ignore[misc]
        def _execute_gen(self, query: Any, *arguments: Any, **options: Any) -> Any:
            work = super()._execute_gen(query, *arguments, **options)
            hold = getattr(self._conn._pipeline, "relevo_hold", None)
            return work if hold is None else hold(work)

        def _settle(self) -> None:
            connection = self.connection
            if self.pgresult is not None or not connection.pgconn.pipeline_status:
                return
            if _async_of(connection):
                setattr(connection, _UNREADY, True)
                raise PipelineError(_NOT_READY)
            with connection.pipeline():
                pass  # entering it waits for what was sent before

        @property
        def rowcount(self) -> int:
            self._settle()
            return super().rowcount  # type: ignore[no-any-return]

        @property
        def description(self) -> Any:
            self._settle()
            return super().description

        @property
        def statusmessage(self) -> Any:
            self._settle()
            return super().statusmessage

        def nextset(self) -> Any:
            self._settle()
            return super().nextset()

    Watched.__name__ = base.__name__
    return Watched
