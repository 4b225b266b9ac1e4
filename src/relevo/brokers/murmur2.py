"""Which partition a key goes to: murmur2 as in Apache Kafka's Java client and librdkafka's ``murmur2_random``, so that
a key keeps its neighbours whichever client wrote it. Pure."""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The unsigned 32-bit hash of ``data`` (``org.apache.kafka.common.utils.Utils.murmur2``)."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for offset in range(0, whole, 4):
        k = (int.from_bytes(data[offset : offset + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    rest = data[whole:]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of ``key`` among ``partitions``: the hash without its sign bit, modulo."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
