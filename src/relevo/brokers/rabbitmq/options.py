"""``[broker.options]`` of RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from relevo.brokers.given import options_as
from relevo.brokers.rabbitmq import MESSAGE_BYTES_MAX
from relevo.errors import ConfigError
from relevo.settings import redact

SLOTS: Final = 64
"""Into how many slots keys are hashed: at most so many queues of a consumer and topic. Part of the wire format."""


class RabbitOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Durations in seconds."""

    queues: int = 4
    """Queues of a consumer and topic, declared when it first subscribes: how many processes can share the work. 1 to
    64; it cannot be changed afterwards."""
    prefetch: int = 250
    """Messages of one queue that are delivered and not settled, at most."""
    window: int = 1_000
    """Messages of a publisher that are not confirmed, at most."""
    connect_timeout_s: float = 3.0
    member_timeout_s: float = 4.0
    """A member of a consumer that says nothing for so long is left out when queues are shared."""
    queue_length_max: int = 0
    """Queues refuse messages beyond this length (the relay waits then); 0: no limit. Fixed when the queue is declared;
    a policy can set it later."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    without_id: Literal["run", "content", "park"] = "run"
    """A stranger's message without ``ce_id`` and ``message_id``, which nobody can recognise when it comes again:
    ``run`` it, perhaps twice after a crash; take it for the same as any other with equal ``content``; or ``park``."""


def parse(url: str, options: Mapping[str, Any]) -> RabbitOptions:
    """The options; raises ``ConfigError`` naming the nearest known one, or what is wrong with a value or the URL."""
    check_url(url)
    parsed = options_as(RabbitOptions, options, "RabbitMQ")
    if not 1 <= parsed.queues <= SLOTS:
        raise ConfigError(f"broker.options: queues must be between 1 and {SLOTS}")
    if not 1 <= parsed.prefetch <= 65_535:
        raise ConfigError("broker.options: prefetch must be between 1 and 65535")
    positive = ("window", "connect_timeout_s", "member_timeout_s", "message_bytes_max")
    for name in positive:
        if getattr(parsed, name) <= 0:
            raise ConfigError(f"broker.options: {name} must be above 0")
    if parsed.queue_length_max < 0:
        raise ConfigError("broker.options: queue_length_max must not be below 0")
    return parsed


def check_url(url: str) -> None:
    parts = urlsplit(url)
    try:
        fine = parts.scheme in ("amqp", "amqps") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(f"broker.url {redact(url)!r}: use amqp://user:password@host:port/vhost, or amqps://")
