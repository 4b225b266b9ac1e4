"""The partitioner against the values of Kafka's own tests."""

from __future__ import annotations

import pytest

from relevo.brokers.murmur2 import murmur2, partition_of

# org.apache.kafka.common.utils.UtilsTest.testMurmur2, as signed 32-bit integers.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "expected"), VECTORS.items())
def test_java_values(data: bytes, expected: int) -> None:
    """Equal to Java's ``Utils.murmur2``."""
    assert murmur2(data) == expected % 2**32


def test_partition_drops_the_sign() -> None:
    """``toPositive(hash) % partitions``, not the absolute value."""
    assert partition_of(b"21", 10) == ((-973932308) & 0x7FFFFFFF) % 10
    assert 0 <= partition_of(b"", 3) < 3
