"""``[broker.options]`` of the broker that is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from relevo.brokers.given import options_as
from relevo.catalog import DEFAULT_PREFIX, check_identifier
from relevo.errors import ConfigError
from relevo.message import MESSAGE_BYTES_MAX


class PostgresOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Durations in seconds."""

    schema: str | None = None
    """Of the tables at ``broker.url``; not set: the search path there."""
    prefix: str = DEFAULT_PREFIX
    """Of the tables at ``broker.url``."""
    prepared_statements: bool = True
    """``false`` behind a pooler that cannot keep them."""
    lease_s: float = 15.0
    """A member that was silent for so long loses its lanes."""
    poll_min_s: float = 0.005
    """Between two looks while there is something to do."""
    poll_max_s: float = 0.5
    """Between two looks when there was nothing for a while: each doubles the pause up to this."""
    auto_create: bool = True
    """A topic need not be made before it is used. ``false``: ``ensure_topics`` must have made it."""
    message_bytes_max: int = MESSAGE_BYTES_MAX


def parse(options: Mapping[str, Any]) -> PostgresOptions:
    """The options; raises ``ConfigError`` naming the nearest known one, or what is wrong with a value."""
    parsed = options_as(PostgresOptions, options, "the broker postgresql")
    check_identifier("broker.options: prefix", parsed.prefix)
    if parsed.schema is not None:
        check_identifier("broker.options: schema", parsed.schema)
    if parsed.lease_s <= 0 or parsed.message_bytes_max < 1:
        raise ConfigError("broker.options: lease_s and message_bytes_max must be above 0")
    if not 0 < parsed.poll_min_s <= parsed.poll_max_s:
        raise ConfigError("broker.options: poll_min_s must be above 0, and poll_max_s not below it")
    return parsed
