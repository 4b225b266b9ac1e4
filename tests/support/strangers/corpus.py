"""The corpus, for every broker, and what is specific to each. Each record says what becomes of it.

A record is known again by its header ``x-name`` or by its body. Fates: ``HANDLED``, ``PARKED`` (with any reason),
``DUPLICATE`` (its id was there before), or the error type with which it is parked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

HANDLED, PARKED, DUPLICATE = "handled", "parked", "duplicate"
MALFORMED, NO_TYPE, NO_HANDLER = "Malformed", "NoType", "NoHandler"
RAW, TYPED = b"odd.raw", b"odd.typed"
TEN_KB: Final = b"x" * 10_000

Header = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Record:
    """``raw``: what the broker's client would not send: packed headers (embedded), a content header's properties
    (RabbitMQ), columns that are set by hand (PostgreSQL). ``batch``: how Kafka gets it."""

    name: str
    fate: str
    headers: tuple[Header, ...]
    key: bytes | None
    value: bytes | None
    at_ms: int | None = None
    raw: object = None
    batch: str = ""


def record(
    name: str,
    fate: str = HANDLED,
    *headers: Header,
    key: bytes | str | None = "",
    value: bytes | str | None = "",
    type: bytes | None = RAW,
    at_ms: int | None = None,
    raw: object = None,
    batch: str = "",
) -> Record:
    """With a key and a body of its own, unless they are what is odd about it."""
    own: list[Header] = [(b"x-name", name.encode())]
    if type is not None:
        own.append((b"ce_type", type))
    return Record(
        name,
        fate,
        (*headers, *own),
        name.encode() if isinstance(key, str) else key,
        b'{"n":"%s"}' % name.encode() if isinstance(value, str) else value,
        at_ms,
        raw,
        batch,
    )


def all_of(broker: str) -> list[Record]:
    """In the order in which they are sent, a good one behind every five."""
    specific = {"kafka": of_kafka, "rabbitmq": of_rabbitmq, "embedded": of_embedded, "postgres": of_postgres}[broker]
    odd = [*common(broker), *specific()]
    found: list[Record] = []
    for number, each in enumerate(odd):
        found.append(each)
        if number % 5 == 4:
            found.append(record(f"good-{number}"))
    names = [each.name for each in found]
    assert len(names) == len(set(names))
    return found


def common(broker: str) -> Iterator[Record]:
    yield from types()
    yield from times()
    yield from names(broker)
    yield from values()
    yield from keys()
    yield from bodies()
    yield from attributes()
    if broker != "postgres":  # there the id is a column
        yield from ids(broker)


def types() -> Iterator[Record]:
    yield record("type-missing", NO_TYPE, type=None)
    yield record("type-empty", NO_TYPE, type=b"")
    odd = {
        "unknown": b"odd.unknown",
        "upper": b"ODD.RAW",
        "space": b"odd.raw ",
        "newline": b"odd.raw\n",
        "crlf": b"odd.raw\r\nx: y",
        "nul": b"odd.raw\x00",
        "only-nul": b"\x00",
        "not-utf8": b"\xff\xfe",
        "half": b"odd.raw\xc3",
        "surrogate": b"\xed\xa0\x80",
        "long": b"odd." + TEN_KB,
        "escape": b"\x1b[2J\x1b]0;pwned\x07",
        "quote": b"'; drop table relevo_inbox; --",
        "percent": b"%s %(x)s {0} :name",
        "unicode": "øþþ.😀".encode(),
        "rtl": "\u202eodd.raw".encode(),
        "star": b"*",
        "separator": "odd\u2028raw".encode(),
    }
    for name, type_ in odd.items():
        yield record(f"type-{name}", NO_HANDLER, type=type_)


def times() -> Iterator[Record]:
    texts = {
        "max": b"9999-12-31T23:59:59.999999+00:00",
        "max-west": b"9999-12-31T23:59:59.999999-14:00",
        "max-east": b"9999-12-31T23:59:59.999999+14:00",
        "rounds-up": b"9999-12-31T23:59:59.9999999Z",
        "min": b"0001-01-01T00:00:00Z",
        "min-east": b"0001-01-01T00:00:00+14:00",
        "min-west": b"0001-01-01T00:00:00-14:00",
        "year-zero": b"0000-01-01T00:00:00Z",
        "year-10000": b"10000-01-01T00:00:00Z",
        "infinity": b"infinity",
        "minus-infinity": b"-infinity",
        "before-1970": b"1969-12-31T23:59:59.999999Z",
        "bc": b"0044-03-15 BC",
        "naive": b"2024-01-01T00:00:00",
        "date": b"2024-01-01",
        "week": b"2024-W01-1",
        "leap": b"2016-12-31T23:59:60Z",
        "number": b"1700000000",
        "empty": b"",
        "nul": b"2024-01-01T00:00:00Z\x00",
        "not-utf8": b"\xff",
        "words": b"yesterday",
        "long": b"2" * 10_000,
        "digits": "\u0662\u0660\u0662\u0664-01-01T00:00:00Z".encode(),
    }
    for name, text in texts.items():
        yield record(f"time-{name}", HANDLED, (b"ce_time", text))
    for name in ("max", "max-west", "min", "min-east", "infinity", "before-1970"):
        yield record(f"time-{name}-parked", NO_HANDLER, (b"ce_time", texts[name]), type=b"odd.unknown")


def names(broker: str) -> Iterator[Record]:
    odd = {
        "empty": b"",
        "upper": b"X-Upper",
        "space": b" a b ",
        "newline": b"a\nb: c",
        "escape": b"\x1b[31m",
        "unicode": "ключ-😀".encode(),
        "long": b"n" * 250,
        "quote": b"\"'\\",
        "dollar": b"$a.b",
        "proto": b"__proto__",
        "ours": b"relevo-consumer",
        "malformed": b"relevo-malformed",
        "edited": b"relevo-edited-from",
        "trace": b"traceparent",
        "ce-unknown": b"ce_unknown",
        "content": b"content-encoding",
    }
    for name, raw in odd.items():
        yield record(f"name-{name}", HANDLED, (raw, b"1"))
        yield record(
            f"name-{name}-parked", NO_HANDLER if name != "malformed" else MALFORMED, (raw, b"1"), type=b"odd.no"
        )
    if broker != "postgres":
        yield record("name-nul", HANDLED, (b"a\x00b", b"1"))
        yield record("name-twice", HANDLED, (b"a", b"1"), (b"a", b"2"))
    yield record("names-many", HANDLED, *((b"h%d" % number, b"v") for number in range(300)))


def values() -> Iterator[Record]:
    odd = {
        "none": None,
        "empty": b"",
        "not-utf8": b"\xff\xfe",
        "nul": b"a\x00b",
        "surrogate": b"\xed\xb0\x80",
        "newline": b"a\r\nb",
        "long": b"v" * 20_000,
        "json": b'{"a": [1, null]}',
        "unicode": "😀".encode(),
    }
    for name, raw in odd.items():
        yield record(f"value-{name}", HANDLED, (b"h", raw))
        yield record(f"value-{name}-parked", NO_HANDLER, (b"h", raw), type=b"odd.no")


def keys() -> Iterator[Record]:
    odd = {
        "none": None,
        "empty": b"",
        "nul": b"\x00",
        "not-utf8": b"\xff\xfe\x00",
        "1024": b"k" * 1024,
        "1025": b"k" * 1025,
        "long": b"k" * 10_000,
        "unicode": "ключ".encode(),
        "newline": b"a\nb",
        "escape": b"\x1b[2Jkey",
        "percent": b"%",
        "zero": b"0x00",
        "binary": bytes(range(256)),
    }
    for name, raw in odd.items():
        yield record(f"key-{name}", HANDLED, key=raw)
        parked = raw if raw is None else raw + b"p"
        yield record(f"key-{name}-parked", NO_HANDLER, key=parked, type=b"odd.no")


def bodies() -> Iterator[Record]:
    yield record("body-typed", HANDLED, type=TYPED)
    yield record("body-tombstone", HANDLED, value=None)
    yield record("body-empty", HANDLED, value=b"")
    yield record("body-tombstone-parked", NO_HANDLER, value=None, type=b"odd.no")
    odd = {
        "tombstone": None,
        "empty": b"",
        "no-json": b"{",
        "list": b"[]",
        "null": b"null",
        "wrong": b'{"n": 1}',
        "not-utf8": b'{"n": "\xff"}',
        "nul": b"\x00",
        "utf16": '{"n": "x"}'.encode("utf-16"),
        "bom": b'\xef\xbb\xbf{"n": "x"}',
        "deep": b"[" * 20_000 + b"]" * 20_000,
        "surrogate": b'{"n": "\\ud800"}',
        "large": b'{"n": ' + b"1" * 100_000 + b"}",
        "twice": b'{"n": "x"}{"n": "y"}',
    }
    for name, raw in odd.items():
        yield record(f"body-typed-{name}", PARKED, type=TYPED, value=raw)
    yield record("body-large", HANDLED, value=b"\xff" * 700_000)
    yield record("body-large-parked", NO_HANDLER, value="я".encode() * 200_000, type=b"odd.no")
    yield record("body-binary-parked", NO_HANDLER, value=bytes(range(256)), type=b"odd.no")


def attributes() -> Iterator[Record]:
    numbers = (b"0", b"-1", b"2147483647", b"2147483648", b"9223372036854775807", b"9" * 30, b"1.5", b"x", b"", b"\xff")
    for place, raw in enumerate(numbers):
        yield record(f"schema-{place}", HANDLED, (b"ce_schemaversion", raw))
        yield record(f"version-{place}-parked", NO_HANDLER, (b"ce_aggregateversion", raw), type=b"odd.no")
    for place, raw in enumerate((b"command", b"COMMAND", b"event", b"", b"\xff", b"kind\x00")):
        yield record(f"kind-{place}", HANDLED, (b"ce_kind", raw))
    for place, raw in enumerate((b"", b"\xff", b"a\x00", TEN_KB, "😀".encode())):
        headers = ((b"ce_aggregateid", raw), (b"ce_aggregatetype", raw))
        yield record(f"aggregate-{place}", HANDLED, *headers)
        yield record(f"aggregate-{place}-parked", NO_HANDLER, *headers, type=b"odd.no")
    for place, raw in enumerate((b"text/plain", b"", b"application/json; charset=\xff", TEN_KB, b"\x00", b"a\nb")):
        yield record(f"content-{place}-parked", NO_HANDLER, (b"content-type", raw), type=b"odd.no")
    yield record("source-odd", HANDLED, (b"ce_source", b"\xff\x00"), (b"ce_id", b"1"))
    yield record("spec-odd", HANDLED, (b"ce_specversion", b"99"))


def ids(broker: str) -> Iterator[Record]:
    odd = {
        "uuid4": b"7f0f1f4e-96b7-4d5c-8f6e-3d2c1b0a9f8e",
        "upper": b"7F0F1F4E-96B7-4D5C-8F6E-3D2C1B0A9F8F",
        "braces": b"{7f0f1f4e-96b7-4d5c-8f6e-3d2c1b0a9f90}",
        "urn": b"urn:uuid:7f0f1f4e-96b7-4d5c-8f6e-3d2c1b0a9f91",
        "nil": b"00000000-0000-0000-0000-000000000000",
        "max": b"ffffffff-ffff-ffff-ffff-ffffffffffff",
        "number": b"17",
        "words": b"order 17 of today",
        "long": b"i" * 10_000,
        "not-utf8": b"\xff",
        "not-utf8-other": b"\xfe",
        "nul": b"a\x00",
        "nul-other": b"b\x00",
        "unicode": "😀".encode(),
        "sql": b"' or 1=1 --",
        "short": b"7f0f1f4e-96b7-4d5c-8f6e",
    }
    for name, raw in odd.items():
        yield record(f"id-{name}", HANDLED, (b"ce_id", raw))
    yield record("id-again", DUPLICATE, (b"ce_id", odd["words"]), key=b"id-words")
    yield record("id-uuid-again", DUPLICATE, (b"ce_id", odd["uuid4"]), key=b"id-uuid4")
    if broker != "rabbitmq":  # a table of AMQP has a name once, and pamqp keeps the last
        yield record("id-first", HANDLED, (b"ce_id", b"first one"), (b"CE_ID", odd["words"]))
        yield record("id-empty", HANDLED, (b"ce_id", b""))


def of_kafka() -> Iterator[Record]:
    for name, raw in {
        "ff": b"\xff\xfe",
        "half": b"a\xc3",
        "surrogate": b"\xed\xa0\x80",
        "latin1": b"\xe9t\xe9",
    }.items():
        yield record(f"kafka-name-{name}", MALFORMED, (raw, b"1"))
    yield record("kafka-name-late", MALFORMED, *((b"h%d" % number, b"v") for number in range(50)), (b"\xff", None))
    for name, at_ms in {"us": 1_700_000_000_000_000, "max": 2**63 - 1, "year-10000": 253_402_300_800_000}.items():
        yield record(f"kafka-time-{name}", MALFORMED, at_ms=at_ms)
        yield record(f"kafka-time-{name}-ce", MALFORMED, (b"ce_time", b"2024-01-01T00:00:00Z"), at_ms=at_ms)
    for name, at_ms in {"zero": 0, "none": -1, "one": 1, "year-9999": 253_370_764_800_000}.items():
        yield record(f"kafka-time-{name}", HANDLED, at_ms=at_ms)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        yield record(f"kafka-{codec}", HANDLED, batch=codec)
        yield record(f"kafka-{codec}-parked", NO_HANDLER, type=b"odd.no", batch=codec)
    yield record("kafka-name-gzip", MALFORMED, (b"\xff", b"1"), batch="raw-gzip")
    yield record("kafka-committed", HANDLED, batch="committed")
    yield record("kafka-committed-parked", NO_HANDLER, type=b"odd.no", batch="committed")
    yield record("kafka-aborted", "never", batch="aborted")


def of_embedded() -> Iterator[Record]:
    packed = {
        "empty": b"",
        "nil": b"\xc0",
        "map": b"\x81\xa1a\xa1b",
        "number": b"\x05",
        "cut": b"\x92\x92\xa1a",
        "text-values": b"\x91\x92\xa1a\xa1b",
        "name-number": b"\x91\x92\x01\xc4\x01b",
        "name-not-utf8": b"\x91\x92\xa2\xff\xfe\xc4\x01b",
        "triple": b"\x91\x93\xa1a\xc4\x01b\xc0",
        "deep": b"\x91" * 50_000 + b"\xc0",
        "extension": b"\x91\xc7\x01\x05x",
        "trailing": b"\x90\x90",
        "length": b"\xdd\xff\xff\xff\xff",
        "value-none": b"\x91\x92\xa1a\xc0",
    }
    for name, raw in packed.items():
        yield record(f"embedded-packed-{name}", MALFORMED, raw=raw)
    for name, at_ms in {"max": 2**63 - 1, "min": -(2**63), "us": 1_700_000_000_000_000}.items():
        yield record(f"embedded-time-{name}", MALFORMED, at_ms=at_ms)
    for name, at_ms in {"zero": 0, "before": -1}.items():
        yield record(f"embedded-time-{name}", HANDLED, at_ms=at_ms)


def of_rabbitmq() -> Iterator[Record]:
    from tests.support.strangers.amqp import ODD_PROPERTIES, ODD_VALUES

    for name, (fate, properties) in ODD_PROPERTIES.items():
        yield record(f"amqp-{name}", fate, raw=properties)
    for name, value in ODD_VALUES.items():
        yield replace(record(f"amqp-value-{name}"), raw={"h": value})
    yield record("amqp-routing", HANDLED, batch="routing")


def one_header(text: str) -> str:
    return f'{{"h": {text}}}'


def of_postgres() -> Iterator[Record]:
    texts = {
        "empty": '""', "nul-like": '"\\\\u0000"', "number": "17", "float": "1.50", "true": "true", "null": "null",
        "object": '{"a": 1}', "list": "[1, 2]", "unicode": '"😀"', "large-number": "1" * 300, "tiny": "1e-400",
    }  # fmt: skip
    for name, text in texts.items():
        yield record(f"postgres-header-{name}", HANDLED, raw={"headers": one_header(text)})
        yield record(f"postgres-header-{name}-parked", NO_HANDLER, type=b"odd.no", raw={"headers": one_header(text)})
    yield record("postgres-header-huge-number", HANDLED, raw={"headers": '{"h": 1e999}'})
    yield record("postgres-header-deep", MALFORMED, raw={"headers": one_header("[" * 3000 + "]" * 3000)})
    yield record("postgres-header-none", HANDLED, raw={"headers": None})
    for name, at in {"first": "1970-01-01T00:00:00Z", "last": "9998-12-31T23:59:59.999999Z"}.items():
        yield record(f"postgres-time-{name}", HANDLED, raw={"created_at": at})
        yield record(f"postgres-time-{name}-parked", NO_HANDLER, type=b"odd.no", raw={"created_at": at})
    for name, number in {"zero": 0, "minus": -1, "min": -(2**31), "max": 2**31 - 1}.items():
        yield record(f"postgres-schema-{name}", HANDLED, raw={"schema_version": number})
    for name, number in {"min": -(2**63), "max": 2**63 - 1}.items():
        yield record(f"postgres-version-{name}", HANDLED, raw={"aggregate_version": number})
    yield record("postgres-command", HANDLED, raw={"kind": "command"})
    yield record("postgres-content", NO_HANDLER, type=b"odd.no", raw={"content_type": "\x1b[2J\n"})
    yield record("postgres-aggregate", NO_HANDLER, type=b"odd.no", raw={"aggregate_id": "", "aggregate_type": "\r"})
    for name in ("ce_id", "CE_Type", "ce_kind", "content-type", "relevo-consumer", "ce_partitionkey"):
        yield record(f"postgres-reserved-{name}", HANDLED, raw={"headers": json.dumps({name: "forged"})})
