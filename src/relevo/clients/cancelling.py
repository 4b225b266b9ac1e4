"""Giving up a libpq connection: the server is asked to cancel what it does for it, and no one waits for that."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from relevo.bounds import CONNECT_S
from relevo.clients.watch import shut

log = logging.getLogger("relevo.database")

THREADS_MAX: Final = 8
_threads = threading.BoundedSemaphore(THREADS_MAX)


def abandon(pgconn: Any) -> None:
    """Cancel and shut the socket; a caller that waits for the connection sees it lost. Never waits. Not
    ``finish``: a task or thread may be waiting for the socket, whose number could be given anew."""
    cancel(pgconn)
    if pgconn.status == 0:  # open; a closed one has no socket
        shut(pgconn.socket)


def cancel(pgconn: Any) -> None:
    """Ask the server to cancel. Returns at once, since the server may not answer this either. Without it
    a server that is only slow would keep a process, and its locks, for each connection that was given up."""
    if pgconn.status != 0 or not _threads.acquire(blocking=False):
        return
    try:
        threading.Thread(target=_ask, args=(_request(pgconn),), daemon=True, name="relevo-cancel").start()
    except BaseException:
        _threads.release()
        raise


def _ask(request: Callable[[], None]) -> None:
    import psycopg

    try:
        request()
    except (psycopg.Error, OSError) as error:
        log.debug("the server did not cancel: %s", error)
    finally:
        _threads.release()


def _request(pgconn: Any) -> Callable[[], None]:
    import psycopg

    try:
        connection = pgconn.cancel_conn()  # encrypted as the connection is
    except (AttributeError, psycopg.NotSupportedError):  # libpq before 17
        return pgconn.get_cancel().cancel  # type: ignore[no-any-return]
    return lambda: _drive(connection, psycopg.pq.PollingStatus)


def _drive(connection: Any, status: Any) -> None:
    until = time.monotonic() + CONNECT_S
    connection.start()
    while (wanted := connection.poll()) in (status.READING, status.WRITING):
        poll = select.poll()
        poll.register(connection.socket, select.POLLIN if wanted == status.READING else select.POLLOUT)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError(f"no answer within {CONNECT_S:g} s")
