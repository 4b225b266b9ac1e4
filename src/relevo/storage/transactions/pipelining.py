"""psycopg's pipeline mode around handlers: statements go out one after the other, and nobody waits for the answers.

A handler must not notice. Fetching waits by itself, and so does the end of a ``conn.transaction()`` block. What would
answer wrongly, as if the statement had done nothing, is watched: ``rowcount`` and its like before the result is there.
A plain cursor then waits for it; an asynchronous one cannot inside an attribute, so the run ends with ``PipelineError``
and is repeated without a pipeline. A COMMIT or ROLLBACK written as SQL would otherwise be noticed too late to tell
whose it was, so it is refused before it is sent.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from relevo.errors import MisuseError
from relevo.storage.transactions.base import MISUSE, PipelineError

_UNREADY = "relevo_unready"
_ENDS = re.compile(
    r"\s*(commit|end|abort|rollback(?!\s+(work\s+|transaction\s+)?to\b)|begin|start\s|prepare\s+tr)", re.I
)
_NOT_READY = (
    "the result of this statement is not there yet: Relevo sent it in a pipeline. Fetch first, or declare the consumer "
    "with pipeline=False; this run is repeated without one"
)


def watch(connection: Any) -> None:
    """Cursors made from now on are watched."""
    connection.cursor_factory = _watched(connection.cursor_factory)


def unwatch(connection: Any) -> None:
    """As before ``watch``, which need not have been called."""
    base = getattr(connection.cursor_factory, "relevo_base", None)
    if base is not None:
        connection.cursor_factory = base


def check(connection: Any) -> None:
    """Raise ``PipelineError`` if somebody was refused a result, even where the handler swallowed that."""
    if vars(connection).pop(_UNREADY, False):
        raise PipelineError(_NOT_READY)


@lru_cache(maxsize=1024)
def ends_transaction(query: str | bytes) -> bool:
    """Whether it is a statement that begins, commits or rolls back a transaction, and no savepoint."""
    return _ENDS.match(query if isinstance(query, str) else query.decode("utf-8", "replace")) is not None


@cache
def _watched(base: Any) -> Any:
    from psycopg import AsyncConnection

    class Watched(base):  # type: ignore[misc]
        relevo_base = base

        def _execute_gen(self, query: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(query, (str, bytes)) and ends_transaction(query):
                raise MisuseError(MISUSE)
            return super()._execute_gen(query, *arguments, **options)

        def _settle(self) -> None:
            connection = self.connection
            if self.pgresult is not None or not connection.pgconn.pipeline_status:
                return
            if isinstance(connection, AsyncConnection):
                vars(connection)[_UNREADY] = True
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
