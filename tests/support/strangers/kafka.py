"""Record batches for Kafka, byte by byte: the usual client refuses names that are not UTF-8 (or ends its process)."""

from __future__ import annotations

import gzip
import socket
import struct
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from tests.support.strangers.corpus import Record

PRODUCE, VERSION = 0, 3
GZIP = 1
NOT_YET = (3, 5, 6)
ANYTHING = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "max.message.bytes": "10000000",
}


def make_topic(servers: str, topic: str) -> None:
    """Of one partition, and with no opinion about times."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, 1, config=ANYTHING)])[topic].result(30)


def send_all(servers: str, topic: str, records: Sequence[Record]) -> None:
    """In order. Neighbours of one kind share a batch of at most 20, so that a bad one has good ones beside it."""
    group: list[Record] = []
    for each in records:
        if group and (each.batch != group[0].batch or len(group) == 20):
            send(servers, topic, group)
            group = []
        group.append(each)
    send(servers, topic, group)


def send(servers: str, topic: str, records: Sequence[Record]) -> None:
    match records[0].batch:
        case "" | "raw-gzip":
            produce(servers, topic, batch(records, GZIP if records[0].batch else 0))
        case "committed" | "aborted":
            in_transaction(servers, topic, records, commit=records[0].batch == "committed")
        case codec:
            by_client({"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 50}, topic, records)


def by_client(config: dict[str, Any], topic: str, records: Sequence[Record]) -> None:
    from confluent_kafka import Producer

    _produced(Producer(config), topic, records)


def in_transaction(servers: str, topic: str, records: Sequence[Record], *, commit: bool) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"strangers-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    _produced(producer, topic, records)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def _produced(producer: Any, topic: str, records: Sequence[Record]) -> None:
    errors: list[Any] = []
    for each in records:
        headers = [(name.decode(), value) for name, value in each.headers]
        producer.produce(
            topic, each.value, each.key, headers=headers, on_delivery=lambda error, _: errors.append(error)
        )
    assert producer.flush(30) == 0 and not any(errors), errors


def produce(servers: str, topic: str, records: bytes) -> None:
    """One request to the one broker there is, again while it does not lead a new topic yet."""
    deadline = time.monotonic() + 30
    while error := _produce(servers, topic, records):
        assert error in NOT_YET and time.monotonic() < deadline, f"Kafka answered error {error}"
        time.sleep(0.05)


def _produce(servers: str, topic: str, records: bytes) -> int:
    name = topic.encode()
    body = struct.pack(">hhih9s", PRODUCE, VERSION, 1, 9, b"strangers")
    body += struct.pack(">hhii", -1, -1, 10_000, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iii", 1, 0, len(records)) + records
    host, _, port = servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    return int(error)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        assert part, "Kafka closed the connection: it did not like the request"
        found += part
    return found


def batch(records: Sequence[Record], codec: int) -> bytes:
    """A record batch of format 2."""
    times = [1_700_000_000_000 if each.at_ms is None else each.at_ms for each in records]
    body = b"".join(
        _record(number, each, at - times[0]) for number, (each, at) in enumerate(zip(records, times, strict=True))
    )
    if codec == GZIP:
        body = gzip.compress(body)
    count = len(records)
    rest = struct.pack(">hiqqqhii", codec, count - 1, times[0], max(times), -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, len(rest) + 9, -1, 2, crc32c(rest)) + rest


def _record(number: int, each: Record, time_delta: int) -> bytes:
    found = b"\0" + varint(time_delta) + varint(number) + _bytes(each.key) + _bytes(each.value)
    found += varint(len(each.headers))
    for name, value in each.headers:
        found += _bytes(name) + _bytes(value)
    return varint(len(found)) + found


def _bytes(raw: bytes | None) -> bytes:
    return varint(-1) if raw is None else varint(len(raw)) + raw


def varint(number: int) -> bytes:
    rest = ((number << 1) ^ (number >> 63)) & 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


@cache
def _table() -> list[int]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return found


def crc32c(raw: bytes) -> int:
    table, crc = _table(), 0xFFFFFFFF
    for byte in raw:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
