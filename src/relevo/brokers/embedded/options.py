"""``[broker.options]`` of the embedded broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from relevo.brokers.given import options_as
from relevo.errors import ConfigError
from relevo.message import MESSAGE_BYTES_MAX


class EmbeddedOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Durations in seconds."""

    partitions: int = 4
    """Of topics created from now on."""
    auto_create: bool = True
    """Create a topic when it is first published or subscribed to: this is the broker that needs no set-up."""
    lease_s: float = 10.0
    """A member that was silent for so long loses its shards."""
    retention_s: float = 7 * 86_400.0
    """Records older than this go once every group has settled them; 0 keeps them for ever."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    busy_timeout_s: float = 5.0
    """How long to wait for another process's write; a publisher waits as long as a send may take."""


def parse(options: Mapping[str, Any]) -> EmbeddedOptions:
    """The options; raises ``ConfigError`` naming the nearest known one, or what is wrong with a value."""
    parsed = options_as(EmbeddedOptions, options, "the embedded broker")
    if not 1 <= parsed.partitions <= 1024:
        raise ConfigError("broker.options: partitions must be between 1 and 1024")
    if parsed.lease_s <= 0 or parsed.retention_s < 0 or parsed.message_bytes_max < 1 or parsed.busy_timeout_s <= 0:
        raise ConfigError(
            "broker.options: lease_s, busy_timeout_s and message_bytes_max must be above 0, retention_s not below"
        )
    return parsed
