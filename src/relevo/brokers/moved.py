"""Options of brokers that have another place by now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from relevo.errors import ConfigError

MOVED: Final[Mapping[str, str]] = {
    "send_timeout_s": "relay.send_timeout_s: one time for how long a send may take and how long before the end of its "
    "lease a relay stops sending",
}


def refuse_moved(options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` that names the new place."""
    for name, place in MOVED.items():
        if name in options:
            raise ConfigError(f"broker.options: {name!r} is not set here any more. Set {place}")
