"""No broker at all: consumers read the outbox of a PostgreSQL database themselves, by its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from relevo.message import MESSAGE_BYTES_MAX
from relevo.ports.broker import BrokerCapabilities

if TYPE_CHECKING:
    from relevo.brokers.postgres.broker import PostgresBroker

NAME: Final = "PostgreSQL"
CONFIRMS: Final = "it is in the outbox of that database (committed)"
"""When a send counts."""
CAPABILITIES: Final = BrokerCapabilities(
    prefix_safe=True,
    ordered_by_key=True,
    keeps_history=True,
    settles_each=False,
    message_bytes_max=MESSAGE_BYTES_MAX,
    across_machines=True,
)


def open_broker(url: str, options: Mapping[str, Any]) -> PostgresBroker:
    from relevo.brokers.postgres.broker import PostgresBroker

    return PostgresBroker(url, options)
