"""Taking a process's connections away, for real: only for probes (``RELEVO_PROBE=…=cut``)."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


def cut_connections() -> int:
    """Shut down every connected TCP socket of this process, whoever opened it; how many they were.

    Their owners find out as they would when a network or a server goes away: a read ends, a write fails. Sockets that
    listen stay, and so do new connections: what reconnects works again at once.
    """
    numbers = [int(entry.name) for entry in Path("/dev/fd").iterdir()]
    return sum(_cut(number) for number in numbers)


def _cut(fd: int) -> bool:
    with contextlib.suppress(OSError):
        copy = os.dup(fd)
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # not a socket
            os.close(copy)
            return False
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.getpeername()  # raises unless it is connected
                connection.shutdown(socket.SHUT_RDWR)
                return True
    return False
