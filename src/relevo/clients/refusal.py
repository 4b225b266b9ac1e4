"""Why a PostgreSQL server refused a connection, by its SQLSTATE.

libpq hands out the code of an error only once it is connected; before that there is text in the server's language. With
libpq's verbose messages the code stands in the text at a fixed place, so a refused connection is asked for once more
with those. Where libpq cannot be told so (no ``/proc``), the answer is ``None``, as if no server had answered.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import re
import select
import time
from pathlib import Path
from typing import Any, Final

ASK_S: Final = 5.0
_ANSWERED: Final = ":  "
"""libpq writes it between the severity and the text of a server's error, in every language, and nowhere else."""
_CODE: Final = re.compile(rf"{_ANSWERED}([0-9A-Z]{{5}}): ")
_VERBOSE: Final = 2


def answered(text: str) -> bool:
    """Whether ``text``, of a connection that failed, comes from a server."""
    return _ANSWERED in text


async def sqlstate_of_refusal(conninfo: str) -> str | None:
    """As ``ask_refusal``, beside the loop."""
    return await asyncio.to_thread(ask_refusal, conninfo)


def ask_refusal(conninfo: str) -> str | None:
    """Connect again, in ``ASK_S`` at most; the SQLSTATE the server refuses with, ``None`` if it does not refuse, or
    cannot be asked."""
    from psycopg import pq

    library = _libpq()
    if library is None:
        return None
    end = time.monotonic() + ASK_S
    connection: Any = pq.PGconn.connect_start(conninfo.encode())
    try:
        library.PQsetErrorVerbosity(ctypes.c_void_p(connection.pgconn_ptr), _VERBOSE)
        while (status := connection.connect_poll()) not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
            waits = select.poll()
            waits.register(connection.socket, select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT)
            if not waits.poll(max(0.0, end - time.monotonic()) * 1000):
                return None
        found = _CODE.findall(connection.error_message.decode("utf-8", "replace"))
        return found[-1] if found else None
    except OSError:
        return None
    finally:
        connection.finish()


@functools.cache
def _libpq() -> ctypes.CDLL | None:
    """The library that psycopg has loaded, whichever it is."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
        names = [parts[5] for line in lines if len(parts := line.split(maxsplit=5)) == 6]
        name = next(name for name in names if Path(name).name.startswith("libpq"))
        library = ctypes.CDLL(name)
        library.PQsetErrorVerbosity  # noqa: B018 - is it there?
    except (OSError, StopIteration, AttributeError):
        return None
    return library
