"""The embedded broker: topics, groups and positions in one SQLite file, for one machine and no set-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from relevo.message import MESSAGE_BYTES_MAX
from relevo.ports.broker import BrokerCapabilities

if TYPE_CHECKING:
    from relevo.brokers.embedded.broker import EmbeddedBroker

NAME: Final = "Embedded"
CONFIRMS: Final = "it is on disk (synchronous = full)"
"""When a send counts."""
CAPABILITIES: Final = BrokerCapabilities(
    prefix_safe=True,
    ordered_by_key=True,
    keeps_history=True,
    settles_each=False,
    message_bytes_max=MESSAGE_BYTES_MAX,
    across_machines=False,
)


def open_broker(url: str, options: Mapping[str, Any]) -> EmbeddedBroker:
    from relevo.brokers.embedded.broker import EmbeddedBroker

    return EmbeddedBroker(url, options)
