"""Apache Kafka and what speaks its protocol, through librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from relevo.ports.broker import BrokerCapabilities

if TYPE_CHECKING:
    from relevo.brokers.kafka.broker import KafkaBroker

NAME: Final = "Kafka"
CONFIRMS: Final = "all replicas in sync have it (acks=all, idempotent)"
"""When a send counts."""
CAPABILITIES: Final = BrokerCapabilities(
    prefix_safe=True,
    ordered_by_key=True,
    keeps_history=True,
    settles_each=False,
    message_bytes_max=None,
    across_machines=True,
)


def open_broker(url: str, options: Mapping[str, Any]) -> KafkaBroker:
    from relevo.brokers.kafka.broker import KafkaBroker

    return KafkaBroker(url, options)
