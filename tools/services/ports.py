"""Loopback ports: chosen from a base, kept while they are free."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Collection

from .errors import ServiceError
from .settings import EPHEMERAL_PORT_MIN

NEXT_TRY = 100
RELEASE_WAIT_S = 3.0


def accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5):
            return True
    except OSError:
        return False


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def choose(kept: int | None, first: int, taken: Collection[int]) -> int:
    """The kept port if it can be had, else the first free one from `first` on."""
    if kept is not None and kept not in taken:
        deadline = time.monotonic() + RELEASE_WAIT_S  # a server just killed lets go of it in a moment
        while time.monotonic() < deadline:
            if is_free(kept):
                return kept
            time.sleep(0.05)
    for port in range(first, EPHEMERAL_PORT_MIN, NEXT_TRY):
        if port not in taken and is_free(port):
            return port
    raise ServiceError(f"no free port from {first} on. Set RELEVO_SERVICES_BASE_PORT to another number below 32000.")
