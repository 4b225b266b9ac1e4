"""RabbitMQ 3.10 and later, through aio-pika: quorum queues, publisher confirms, single active consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from relevo.ports.broker import BrokerCapabilities

if TYPE_CHECKING:
    from relevo.brokers.rabbitmq.broker import RabbitBroker

NAME: Final = "RabbitMQ"
CONFIRMS: Final = "the queue's quorum has it (publisher confirms)"
"""When a send counts."""
MESSAGE_BYTES_MAX: Final = 16_777_216
"""RabbitMQ 4's ``max_message_size``; 3.x takes more."""
CAPABILITIES: Final = BrokerCapabilities(
    prefix_safe=False,
    ordered_by_key=True,
    keeps_history=False,
    settles_each=True,
    message_bytes_max=MESSAGE_BYTES_MAX,
    across_machines=True,
)


def open_broker(url: str, options: Mapping[str, Any]) -> RabbitBroker:
    from relevo.brokers.rabbitmq.broker import RabbitBroker

    return RabbitBroker(url, options)
