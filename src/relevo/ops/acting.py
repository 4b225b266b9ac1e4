"""Who acts, for the audit."""

from __future__ import annotations

import getpass
import socket


def actor_of() -> str:
    """``user@host`` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
