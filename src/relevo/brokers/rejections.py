"""What several brokers refuse before they send, in the same words."""

from __future__ import annotations

from relevo.outcome import Rejected
from relevo.outgoing import Sendable


def unknown_topic(topic: str) -> Rejected:
    """Of a broker that can make topics by itself, and was told not to."""
    return Rejected(
        "unknown_topic", f"the topic {topic!r} does not exist, and broker.options.auto_create is off: create it first"
    )


def too_large(message: Sendable, limit: int) -> Rejected | None:
    """If payload, key and headers have more than ``limit`` bytes."""
    size = message.size_bytes()
    if size <= limit:
        return None
    return Rejected("message_too_large", f"the message has {size:,} bytes, and {limit:,} are allowed")
