"""One command on a psycopg connection by the simple query protocol: at the price of ``connection.commit()``, a tenth of
a cursor's.

A cursor converts the text, plans how it is prepared and describes the results, for every transaction of a consumer. The
application's cursor class, row factory and adapters play no part here. Several statements in one text are one implicit
transaction of the server's: none is executed behind one that fails.

``connection.wait``, ``connection.lock`` and ``psycopg.generators`` are what psycopg's own ``commit`` consists of. Not
all of it is public; ``tests/integration/test_transaction_commands.py`` fails when it has changed.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from typing import Any


def command(connection: Any, text: bytes) -> None:
    """Send ``text`` and wait for all of its results. Raises psycopg's error for the first that failed. Not within a
    pipeline."""
    with connection.lock:
        connection.wait(_executed(connection, text))


async def acommand(connection: Any, text: bytes) -> None:
    """``command`` on an ``AsyncConnection``."""
    async with connection.lock:
        await connection.wait(_executed(connection, text))


def _executed(connection: Any, text: bytes) -> Generator[Any, Any, None]:
    execute, fine, error_of = _parts()
    connection.pgconn.send_query(text)
    for result in (yield from execute(connection.pgconn)):
        if result.status not in fine:
            raise error_of(result, encoding=connection.info.encoding)


@cache
def _parts() -> tuple[Any, Any, Any]:
    """Looked up once: an import within a function is not free."""
    from psycopg import errors, generators, pq

    fine = pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK
    return generators.execute, fine, errors.error_from_result
