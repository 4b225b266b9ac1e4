"""Identities: UUIDv7 event ids, buckets, and stable ids for messages that were not made by Relevo."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from uuid import UUID, uuid5

BUCKETS = 1024
"""Number of buckets; a part of the storage format, fixed for ever."""

FOREIGN_NAMESPACE = UUID("6f1d7f5e-3b52-5c1d-9b0a-8f5f0a4c2e11")
"""Namespace of the UUIDv5 given to messages that carry no UUID of their own."""

_lock = threading.Lock()
_last_ms = 0
_counter = 0


def uuid7() -> UUID:
    """A UUIDv7 (RFC 9562 §5.7), monotonic within this process.

    The 12 bits of ``rand_a`` hold a counter seeded at random each millisecond (RFC 9562 §6.2, method 1); when it
    overflows, the millisecond is advanced. Thread-safe. Identity only: the order of events is ``seq``, never this.
    """
    global _last_ms, _counter
    with _lock:
        now_ms = time.time_ns() // 1_000_000
        if now_ms > _last_ms:
            _last_ms = now_ms
            _counter = int.from_bytes(os.urandom(2), "big") & 0x7FF
        else:
            _counter += 1
            if _counter > 0xFFF:
                _last_ms += 1
                _counter = 0
        milliseconds, counter = _last_ms, _counter
    random = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    return UUID(int=(milliseconds << 80) | (0x7 << 76) | (counter << 64) | (0b10 << 62) | random)


def bucket_of(key: bytes | None, event_id: UUID) -> int:
    """The bucket (0..1023) of a key: first two bytes, big-endian, of SHA-256(key) & 1023.

    A message without a key hashes the 16 bytes of its ``event_id`` instead: spread, unordered. The same formula stands
    in the SQL function ``relevo_add``; test vectors are in ``docs/reference/buckets.md``.
    """
    digest = hashlib.sha256(event_id.bytes if key is None else key).digest()
    return ((digest[0] << 8) | digest[1]) & (BUCKETS - 1)


def foreign_id(*parts: str) -> UUID:
    """A stable UUIDv5 for a message without a UUID: the same parts give the same id, on every process.

    Parts are CloudEvents ``source`` and ``id`` where there are any, else broker, topic, shard and position.
    """
    return uuid5(FOREIGN_NAMESPACE, "\x1f".join(parts))
