"""How long Relevo waits for an answer of a database or broker before it gives the connection up: a clock of its own.

A server's time-outs do not help against a peer that hangs: it sends neither an answer nor an end. Derived from the
leases, so that a connection that hangs is noticed within one.
"""

from __future__ import annotations

from typing import Final

ANSWER_MIN_S: Final = 2.0
"""Short leases are for tests; a server under load may take so long."""
ANSWER_S: Final = 10.0
"""With the default leases."""
OPERATOR_ANSWER_S: Final = 3600.0
"""For commands a person waits for: some of their statements read or index whole tables. Ctrl+C ends them at once."""
CLEANUP_S: Final = 2.0
"""What a wait that was cancelled may take to leave its connection in good order; then the connection is closed."""
CONNECT_S: Final = 5.0
"""For a new connection to one host, unless the URL's ``connect_timeout`` differs."""


def answer_s(lease_s: float, send_timeout_s: float = 0.0) -> float:
    """Seconds without an answer after which a connection is given up, for a process with leases of ``lease_s``.

    A quarter more may go by, since the connections are looked at four times in it. What is left of the lease is for a
    new connection and for the renewal.
    """
    return max(ANSWER_MIN_S, lease_s - max(send_timeout_s, lease_s / 3))


def handler_idle_s(lease_s: float) -> float:
    """How long a handler's transaction may be idle, unless configured: a frozen process loses its locks then. A handler
    may wait for other things inside, so it is many leases."""
    return max(60.0, 20 * lease_s)


def connect_s(answer_s: float) -> float:
    """Seconds for a new connection."""
    return min(CONNECT_S, answer_s)


def keepalives(answer_s: float) -> dict[str, int]:
    """Libpq's settings for TCP: a peer that is gone is noticed by the system in about ``answer_s``, also between
    statements."""
    probe_s = max(1, int(answer_s / 4))
    return {
        "keepalives": 1,
        "keepalives_idle": probe_s,
        "keepalives_interval": probe_s,
        "keepalives_count": 3,
        "tcp_user_timeout": int(answer_s * 1000),
    }
