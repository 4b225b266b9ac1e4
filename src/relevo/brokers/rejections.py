"""What several brokers refuse before they send, in the same words."""

from __future__ import annotations

from relevo.errors import RefusedError
from relevo.naming import check_name
from relevo.outcome import Rejected
from relevo.outgoing import Sendable


def unknown_topic(topic: str) -> Rejected:
    """Of a broker that can make topics by itself, and was told not to."""
    return Rejected(
        "unknown_topic", f"the topic {topic!r} does not exist, and broker.options.auto_create is off: create it first"
    )


def unusable_topic(topic: str) -> Rejected | None:
    """If no broker can have a topic of this name. An append through Relevo refuses it; a row written by hand may have
    it, and a client that raises for it would raise for the messages beside it too."""
    try:
        check_name("topic", topic)
    except RefusedError as error:
        return Rejected("unknown_topic", str(error))
    return None


def too_large(message: Sendable, limit: int) -> Rejected | None:
    """If payload, key and headers have more than ``limit`` bytes."""
    size = message.size_bytes()
    if size <= limit:
        return None
    return Rejected("message_too_large", f"the message has {size:,} bytes, and {limit:,} are allowed")
