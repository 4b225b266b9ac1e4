"""Messages for RabbitMQ whose properties the usual client would not write."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from tests.support.strangers.corpus import HANDLED, MALFORMED, Record

CONTENT_TYPE, HEADERS, MODE, MESSAGE_ID, TIMESTAMP, TYPE, APP = 32768, 8192, 4096, 128, 64, 32, 8
BINARY_VALUE = b"x"


def table(*entries: bytes) -> bytes:
    return struct.pack(">I", sum(map(len, entries))) + b"".join(entries)


def long_text(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def short_text(raw: bytes) -> bytes:
    return bytes([len(raw)]) + raw


def entry(name: bytes, kind: bytes, value: bytes) -> bytes:
    return short_text(name) + kind + value


def nested(kind: bytes, depth: int) -> bytes:
    """An entry that holds tables, or arrays, within each other."""
    value = b"" if kind == b"F" else b"V"
    for _ in range(depth):
        value = (b"\0" if kind == b"F" else b"") + kind + long_text(value)
    return entry(b"deep", kind, long_text(value))


def time(value: int) -> bytes:
    return struct.pack(">Q", value)


Properties = tuple[int, bytes, bytes]
"""Flags beside the headers', entries of the headers' table, and what stands behind that table."""

ODD_PROPERTIES: Final[dict[str, tuple[str, Properties]]] = {
    "time-year-2106": (HANDLED, (TIMESTAMP, b"", time(2**32 - 1))),
    "time-zero": (HANDLED, (TIMESTAMP, b"", time(0))),
    "time-ms": (HANDLED, (TIMESTAMP, b"", time(1_700_000_000_000))),
    "time-us": (MALFORMED, (TIMESTAMP, b"", time(1_700_000_000_000_000))),
    "time-ns": (MALFORMED, (TIMESTAMP, b"", time(1_700_000_000_000_000_000))),
    "time-62": (MALFORMED, (TIMESTAMP, b"", time(2**62))),
    "time-max": (MALFORMED, (TIMESTAMP, b"", time(2**64 - 1))),
    "id-not-utf8": (MALFORMED, (MESSAGE_ID, b"", short_text(b"\xff\xfe"))),
    "id-not-utf8-other": (MALFORMED, (MESSAGE_ID, b"", short_text(b"\xff\xfd"))),
    "id-nul": (HANDLED, (MESSAGE_ID, b"", short_text(b"c\0"))),
    "id-longest": (HANDLED, (MESSAGE_ID, b"", short_text(b"i" * 255))),
    "type-not-utf8": (MALFORMED, (TYPE, b"", short_text(b"\xff"))),
    "app-not-utf8": (MALFORMED, (APP, b"", short_text(b"\xff"))),
    "header-time-us": (MALFORMED, (0, entry(b"when", b"T", time(1_700_000_000_000_000)), b"")),
    "header-time-62": (MALFORMED, (0, entry(b"when", b"T", time(2**62)), b"")),
    "header-name-not-utf8": (MALFORMED, (0, entry(b"\xff\xfe", b"S", long_text(b"1")), b"")),
    "header-name-half": (MALFORMED, (0, entry(b"a\xc3", b"S", long_text(b"1")), b"")),
    "header-name-nul": (HANDLED, (0, entry(b"a\0b", b"S", long_text(b"1")), b"")),
    "header-name-longest": (HANDLED, (0, entry(b"n" * 255, b"S", long_text(b"1")), b"")),
    "header-tables-3000-deep": (MALFORMED, (0, nested(b"F", 3000), b"")),
    "header-arrays-3000-deep": (MALFORMED, (0, nested(b"A", 3000), b"")),
    "header-arrays-5-deep": (HANDLED, (0, nested(b"A", 5), b"")),
    "header-time-in-table": (MALFORMED, (0, entry(b"a", b"F", table(entry(b"t", b"T", time(2**62)))), b"")),
    "header-decimal": (HANDLED, (0, entry(b"a", b"D", b"\xff\xff\xff\xff\xff"), b"")),
    "header-long-string-not-utf8": (HANDLED, (0, entry(b"a", b"S", long_text(b"\xff\xfe")), b"")),
}

ODD_VALUES: Final[dict[str, Any]] = {
    "true": True,
    "integer": -(2**40),
    "float": 1.5,
    "decimal": Decimal("1.50"),
    "none": None,
    "bytes": bytearray(b"\xff\x00"),
    "list": [1, None, ["x"]],
    "table": {"a": {"b": [True]}},
    "time": datetime(2024, 1, 1, tzinfo=UTC),
    "surrogates": "\U0001f600",
    "nul": "a\x00b",
}


async def send_all(url: str, topic: str, records: Sequence[Record]) -> None:
    """In order, on one channel, confirmed."""
    import aiormq

    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        for each in records:
            routing_key = _Bytes(b"s07.\xff\xfe") if each.batch == "routing" else "s07.anything"
            await channel.basic_publish(
                each.value or b"", exchange=topic, routing_key=routing_key, properties=_properties(each), mandatory=True
            )
    finally:
        await connection.close()


class _Bytes(str):
    """A text that is encoded as given."""

    def __new__(cls, raw: bytes) -> _Bytes:
        made = super().__new__(cls, raw.decode("utf-8", "replace"))
        made.raw = raw
        return made

    raw: bytes

    def encode(self, *_: Any) -> bytes:  # type: ignore[override]
        return self.raw


def _properties(each: Record) -> Any:
    import aiormq

    flags, entries, rest = each.raw if isinstance(each.raw, tuple) else (0, b"", b"")
    own = [
        entry(name, b"V", b"") if value is None else entry(name, b"x", long_text(value)) for name, value in each.headers
    ]
    if each.key is not None:
        own.append(entry(b"ce_partitionkey", b"x", long_text(each.key)))
    if each.value is None:
        own.append(entry(b"ce_tombstone", b"t", b"\1"))
    if isinstance(each.raw, dict):
        from pamqp import encode

        own.append(encode.field_table(each.raw)[4:])
    headers = table(*own, entries)  # what cannot be read stands last: what is before it is kept

    class Raw(aiormq.spec.Basic.Properties):  # type: ignore[misc, name-defined]
        def marshal(self) -> bytes:
            return struct.pack(">H", flags | HEADERS | MODE) + _in_order(flags, headers, rest)

    return Raw()


def _in_order(flags: int, headers: bytes, rest: bytes) -> bytes:
    """Properties stand in the order of their flags: those used here come behind headers and mode."""
    assert not flags & CONTENT_TYPE
    return headers + b"\2" + rest
