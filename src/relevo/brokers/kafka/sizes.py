"""How many bytes a message takes in a Kafka record batch. Pure."""

from __future__ import annotations

from typing import Final

from relevo.brokers.kafka.admin import BATCH_OVERHEAD_BYTES
from relevo.outgoing import Sendable
from relevo.wire import Headers

RECORD_OVERHEAD_BYTES: Final = 36
"""At most: length, attributes, timestamp and offset deltas, and the lengths of key, value and the list of headers."""
HEADER_OVERHEAD_BYTES: Final = 10
"""At most, for one header: the lengths of its name and value."""


def record_bytes(message: Sendable, headers: Headers) -> int:
    """At most so many bytes takes a batch with this message alone, uncompressed."""
    size = BATCH_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES + len(message.payload or b"") + len(message.key or b"")
    for name, value in headers:
        size += len(name) + len(value) + HEADER_OVERHEAD_BYTES
    return size
