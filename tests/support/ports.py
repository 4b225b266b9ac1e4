"""Ports for servers that a process opens some time after they were chosen, and for servers that are not there.

Below those that the kernel gives to whoever connects somewhere: nobody else gets one in between.
"""

from __future__ import annotations

import os
import secrets

from tools.services.ports import is_free
from tools.services.settings import EPHEMERAL_PORT_MIN

FIRST = 30_000
"""Above the ports of the servers that tests start."""
EACH = 200
"""For each worker of pytest-xdist."""

_given: set[int] = set()


def worker() -> int:
    """The number of this process among pytest's workers."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def free_port() -> int:
    """A port of the loopback interface that nobody listens on, another one with each call: of this worker alone, and
    at a random place, for other runs on the same machine."""
    first = FIRST + EACH * (worker() % ((EPHEMERAL_PORT_MIN - FIRST) // EACH))
    place = secrets.randbelow(EACH)
    for number in range(EACH):
        port = first + (place + number) % EACH
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise AssertionError(f"no free port from {first} on")
