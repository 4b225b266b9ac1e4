"""What a stranger's bytes become, adapter by adapter, without a server: a delivery, whatever they are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo import wire
from relevo.brokers.embedded.groups import Owned
from relevo.brokers.embedded.shard import Shard as EmbeddedShard
from relevo.brokers.embedded.shard import take_over
from relevo.brokers.kafka.shard import Shard as KafkaShard
from relevo.brokers.postgres.rows import messages as postgres_messages
from relevo.brokers.rabbitmq.shard import Shard as RabbitShard
from relevo.clients import amqp_decoding
from relevo.clients.amqp_decoding import PROBLEM, read_again, reading_anything
from relevo.ids import uuid7
from relevo.message import Message
from relevo.storage.rows import page_reader
from relevo.times import EARLIEST, EPOCH, LATEST, clamped, from_ms, from_us, parsed, to_us

pamqp_decode = pytest.importorskip("pamqp.decode")
pamqp_encode = pytest.importorskip("pamqp.encode")
pamqp_header = pytest.importorskip("pamqp.header")
commands = pytest.importorskip("pamqp.commands")


# -- times -------------------------------------------------------------------------------------------------------------


@given(st.integers())
def test_any_number_is_a_time(number: int) -> None:
    for time in (from_us(number), from_ms(number)):
        assert EARLIEST <= time <= LATEST and time.tzinfo is UTC
        assert from_us(to_us(time)) == time


@given(st.datetimes(timezones=st.sampled_from([None, UTC, *(timezone(timedelta(hours=h)) for h in (-14, 14))])))
def test_any_datetime_is_clamped_to_one_that_every_zone_can_show(time: datetime) -> None:
    found = clamped(time)
    assert EARLIEST <= found <= LATEST
    for hours in (-15, 15):
        found.astimezone(timezone(timedelta(hours=hours)))
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    assert found == aware or found in (EARLIEST, LATEST)


@given(st.text())
def test_any_text_is_a_time_or_none(text: str) -> None:
    found = parsed(text)
    assert found is None or EARLIEST <= found <= LATEST


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("9999-12-31T23:59:59.999999+00:00", LATEST),
        ("9999-12-31T23:59:59.999999-14:00", None),
        ("9999-12-30T23:59:59.999500+00:00", LATEST),
        ("0001-01-01T00:00:00+00:00", EARLIEST),
        ("0001-01-01T00:00:00+14:00", None),
        ("-infinity", None),
        ("infinity", None),
        ("1970-01-01", EPOCH),
    ],
)
def test_the_ends_of_time(text: str, right: datetime | None) -> None:
    assert parsed(text) == right


# -- AMQP --------------------------------------------------------------------------------------------------------------


def content_header(properties: bytes, body_size: int = 3) -> bytes:
    return struct.pack(">HHQ", 60, 0, body_size) + properties


def table(*entries: bytes) -> bytes:
    return struct.pack(">I", sum(map(len, entries))) + b"".join(entries)


def entry(name: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + kind + value


HEADERS = struct.pack(">H", 8192)


def unmarshal(data: bytes) -> Any:
    header = pamqp_header.ContentHeader()
    with reading_anything():
        header.unmarshal(data)
    return header


@given(st.binary(max_size=200))
def test_any_content_header_is_read(data: bytes) -> None:
    header = unmarshal(content_header(data))
    assert header.body_size == 3
    assert header.properties.headers is None or isinstance(header.properties.headers, dict)


@given(st.lists(st.tuples(st.binary(max_size=10), st.sampled_from(list(pamqp_decode.TABLE_MAPPING)), st.binary())))
def test_any_table_is_read(entries: list[tuple[bytes, bytes, bytes]]) -> None:
    header = unmarshal(content_header(HEADERS + table(*(entry(*each) for each in entries))))
    assert header.body_size == 3


def nested(kind: bytes, depth: int) -> bytes:
    value = entry(b"", b"V", b"") if kind == b"F" else b"V"
    for _ in range(depth):
        value = (entry(b"", kind, table(value))) if kind == b"F" else kind + table(value)
    return value if kind == b"F" else entry(b"a", kind, table(value))


NO_DATE = struct.pack(">Q", 2**62)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (struct.pack(">H", 64) + NO_DATE, "beyond what a date can be"),
        (struct.pack(">H", 64) + b"\xff" * 8, "beyond what a date can be"),
        (struct.pack(">H", 128) + b"\x02\xff\xfe", "not UTF-8"),
        (HEADERS + table(entry(b"when", b"T", NO_DATE)), "beyond what a date can be"),
        (HEADERS + table(entry(b"\xff\xfe", b"S", table(b"x"))), "header's name is not UTF-8"),
        (HEADERS + table(entry(b"a", b"z", b"1234")), "unknown type"),
        (HEADERS + table(entry(b"a", b"A", table(b"z"))), "unknown type"),
        (HEADERS + table(nested(b"F", 3000)), "nested deeper"),
        (HEADERS + table(nested(b"A", 3000)), "nested deeper"),
        (HEADERS + b"\x00\x00\xff\xff", "end too early"),
        (b"", "end too early"),
    ],
)
def test_what_cannot_be_decoded_is_named(properties: bytes, reason: str) -> None:
    assert reason in getattr(unmarshal(content_header(properties)), PROBLEM)


def test_what_can_be_read_is_kept() -> None:
    data = HEADERS[:0] + struct.pack(">H", 8192 | 128 | 64)
    data += table(entry(b"ce_id", b"S", table(b"1")), entry(b"\xff", b"S", table(b"x")), entry(b"n", b"u", b"\0\7"))
    data += b"\x02id" + NO_DATE
    found = unmarshal(content_header(data)).properties
    assert found.headers == {"ce_id": "1", r"\xff": "x", "n": 7}
    assert (found.message_id, found.timestamp) == ("id", LATEST)


VALUES: list[Any] = [
    *(True, 1, -1, 2**31, 2**40, -(2**40), 1.5, Decimal("1.5"), "text", "ä", bytearray(b"\xff"), None),
    *([1, ["x", None]], {"a": {"b": [True]}}, datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
]


@pytest.mark.parametrize("value", VALUES)
def test_the_second_reading_agrees_with_pamqps(value: Any) -> None:
    """Where pamqp can read, both read the same: the second one only ever adds what the first could not."""
    sent = commands.Basic.Properties(
        headers={"h": value, "other": "x"}, message_id="m", priority=3, timestamp=datetime(2024, 1, 1, tzinfo=UTC)
    )
    data = pamqp_header.ContentHeader(0, 5, sent).marshal()
    first, second = pamqp_header.ContentHeader(), pamqp_header.ContentHeader()
    first.unmarshal(data)
    read_again(second, data, ValueError("none"))
    assert second.properties == first.properties and second.body_size == first.body_size


def test_all_types_pamqp_knows_are_known_here() -> None:
    """A version of pamqp with other types must be looked at first."""
    assert set(pamqp_decode.TABLE_MAPPING) == set(amqp_decoding._NUMBERS) | set(b"t D S x T F A V \0".split(b" "))
    of_properties = {getattr(commands.Basic.Properties, f"_{name}") for name in commands.Basic.Properties.__slots__}
    assert of_properties == {"shortstr", "octet", "timestamp", "table"}


def test_connections_of_the_application_stay_as_they_were() -> None:
    unmarshal(content_header(b""))
    with pytest.raises(ValueError, match=r"date|year|range"):
        pamqp_header.ContentHeader().unmarshal(content_header(struct.pack(">H", 64) + NO_DATE))
    frame = b"\x01c" + struct.pack(">q", -2) + b"\x01" + b"\x01e" + b"\x02\xff\xfe"
    with pytest.raises(UnicodeDecodeError):
        commands.Basic.Deliver().unmarshal(frame)
    with reading_anything():
        (delivery := commands.Basic.Deliver()).unmarshal(frame)
    assert [getattr(delivery, name) for name in delivery.__slots__] == ["c", -2, True, "e", r"\xff\xfe"]


class Properties(SimpleNamespace):
    def __getattr__(self, name: str) -> None:
        return None


@given(
    st.dictionaries(
        st.text(st.characters(), max_size=8) | st.sampled_from(["ce_id", "ce_time", "CE_TYPE", "ce_partitionkey"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
        | st.datetimes() | st.decimals() | st.lists(st.integers()) | st.dictionaries(st.text(), st.binary()),
        max_size=6,
    ),
    st.binary(max_size=20),
)  # fmt: skip
def test_any_amqp_message_is_delivered(headers: dict[str, Any], body: bytes) -> None:
    shard = RabbitShard("t", 0, "q", None, 1, 0)
    header = SimpleNamespace(properties=Properties(headers=headers))
    shard.arrived.append(
        SimpleNamespace(header=header, body=body, delivery=SimpleNamespace(delivery_tag=1, redelivered=False))
    )
    (delivery,) = shard.take(1)
    storable(delivery.message)
    assert delivery.message.payload in (body, None)


def storable(message: Any) -> None:
    """Every text is one that a database keeps, every time one that it can show."""
    texts = [message.type, message.content_type, message.aggregate_type, message.aggregate_id, *message.headers]
    for text in [*texts, *message.headers.values()]:
        assert text is None or "\x00" not in text
        (text or "").encode()
    assert EARLIEST <= message.created_at <= LATEST


# -- Kafka -------------------------------------------------------------------------------------------------------------


class Record:
    """As the client gives one. ``headers`` may be an exception: it is raised once, as the client does; asking again is
    what gives a broken list."""

    def __init__(self, offset: int, headers: Any = (), created_ms: int = 1, value: bytes | None = b"v") -> None:
        self._offset, self._headers, self._created_ms, self._value = offset, headers, created_ms, value
        self.asked = 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, self._created_ms

    def headers(self) -> Any:
        self.asked += 1
        if isinstance(self._headers, BaseException):
            raise self._headers
        return self._headers


def broken_names(count: int) -> BaseException:
    error: BaseException = UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte")
    for _ in range(count):
        outer = SystemError("<method 'headers'> returned a result with an exception set")
        outer.__cause__ = error
        error = outer
    return error


def kafka(*records: Record) -> tuple[KafkaShard, list[Any]]:
    shard = KafkaShard("t", 0, count(1))
    shard.arrived.extend(records)
    return shard, shard.take(len(records))


@pytest.mark.parametrize("names", [1, 2, 20])
def test_a_header_name_that_is_not_utf8_spoils_its_own_record_only(names: int) -> None:
    evil = Record(1, broken_names(names))
    _, found = kafka(Record(0), evil, Record(2))
    assert [delivery.malformed is None for delivery in found] == [True, False, True]
    assert "UnicodeDecodeError" in (found[1].malformed or "")
    assert (found[1].message.payload, found[1].message.key, found[1].message.type) == (b"v", b"k", "")
    assert evil.asked == 1


@pytest.mark.parametrize("created_ms", [2**63 - 1, int(1.7e15), 253_402_300_800_000])
def test_a_timestamp_that_no_date_can_be_is_malformed_and_clamped(created_ms: int) -> None:
    _, (delivery,) = kafka(Record(0, [("ce_type", b"x")], created_ms))
    assert str(created_ms) in (delivery.malformed or "") and delivery.message.type == "x"
    assert delivery.message.created_at == LATEST


@pytest.mark.parametrize("created_ms", [-1, -(2**63), 0])
def test_a_timestamp_before_1970_is_1970(created_ms: int) -> None:
    _, (delivery,) = kafka(Record(0, (), created_ms))
    assert (delivery.malformed, delivery.message.created_at) == (None, EPOCH)


@given(
    st.lists(st.tuples(st.text(st.characters()), st.none() | st.binary() | st.text())), st.integers(-(2**63), 2**63 - 1)
)
def test_any_kafka_record_is_delivered(headers: list[tuple[str, Any]], created_ms: int) -> None:
    _, (delivery,) = kafka(Record(0, headers, created_ms))
    storable(delivery.message)


def test_offsets_that_begin_again_begin_a_new_generation() -> None:
    shard, old = kafka(*map(Record, range(5, 8)))
    shard.arrived.extend(map(Record, range(3)))
    assert [delivery.position for delivery in old] == [5, 6, 7]
    shard.settle(old[0])
    shard.asked = 6
    new = shard.take(9)
    assert {delivery.generation for delivery in old}.isdisjoint({delivery.generation for delivery in new})
    for delivery in old:
        assert shard.owns(delivery)  # it still runs
        shard.settle(delivery)
    shard.committed(6)  # a confirmation on its way for the old log
    assert (shard.progress.settled, shard.progress.saved, shard.asked) == (0, -1, -1)
    assert shard.progress.unsaved  # so that what the group has, a place in the old log, is replaced at once
    shard.settle(new[1])
    assert shard.progress.settled == 0
    shard.settle(new[0])
    assert shard.progress.settled == 2
    shard.hand_back(new[2])
    shard.hand_back(old[2])
    assert shard.take(2) == [old[2], new[2]]


# -- the embedded broker, PostgreSQL ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(max_size=30), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=4))
def test_any_embedded_record_is_delivered(records: list[tuple[bytes, int]]) -> None:
    shard = EmbeddedShard(Owned(1, "t", 0, 0, 1, 0), 1)
    rows = [(index, b"k", b"p", packed, created_ms) for index, (packed, created_ms) in enumerate(records)]
    found = list(shard.deliver(rows))
    assert [delivery.position for delivery in found] == [row[0] for row in rows]
    for delivery in found:
        storable(delivery.message)


def test_headers_nested_beyond_the_stack_spoil_their_own_record_only() -> None:
    good = msgspec.msgpack.encode([("ce_type", b"x")])
    deep = b"\x91" * 100_000 + b"\xc0"
    shard = EmbeddedShard(Owned(1, "t", 0, 0, 1, 0), 1)
    found = list(shard.deliver([(0, None, b"", good, 1), (1, None, b"", deep, 1), (2, None, b"", good, 1)]))
    assert [delivery.malformed is None for delivery in found] == [True, False, True]


@pytest.mark.parametrize(
    ("replaced", "now", "kept"),
    [
        (False, Owned(1, "t", 0, 3, 4, 10), True),
        (False, Owned(1, "t", 0, 3, 4, 5), False),  # its end went back: restored from a copy
        (True, Owned(1, "t", 0, 3, 4, 10), False),
        (False, Owned(1, "t", 0, 3, 5, 10), False),  # another lease
    ],
)
def test_a_file_that_was_restored_begins_a_new_generation(replaced: bool, now: Owned, kept: bool) -> None:
    generations = count(1)
    shards: dict[str, EmbeddedShard] = {}
    take_over(shards, [Owned(1, "t", 0, 3, 4, 3)], generations, "g", False)
    old = shards["t/0"]
    old.next_position = 8
    take_over(shards, [now], generations, "g", replaced)
    assert (shards["t/0"] is old) is kept
    assert (shards["t/0"].generation == old.generation) is kept
    if not kept:
        assert shards["t/0"].progress.settled == 3


def postgres_row(seq: int, **changed: Any) -> tuple[Any, ...]:
    columns: dict[str, Any] = {
        "topic": "t", "key": b"k", "payload": b"{}", "event_id": str(uuid7()).encode(),
        "time": b"2024-01-01T00:00:00+00:00", "kind": "event", "type": "x", "schema_version": 1,
        "content_type": "application/json", "aggregate_type": None, "aggregate_id": None, "aggregate_version": None,
        "headers": None,
    }  # fmt: skip
    return (seq, 0, *{**columns, **changed}.values())


BROKEN: list[dict[str, Any]] = [
    {"headers": "[1]"},
    {"headers": '{"a": 1e999}'},
    {"headers": '{"a": "\\ud800"}'},
    {"headers": '{"a":' + "[" * 50_000 + "]" * 50_000 + "}"},
]


@pytest.mark.parametrize("changed", BROKEN, ids=lambda changed: str(changed)[:30])
def test_a_row_that_cannot_be_read_spoils_itself_only(changed: dict[str, Any]) -> None:
    rows = [postgres_row(1), postgres_row(2, **changed), postgres_row(3)]
    sent, unreadable = page_reader("postgresql")(rows)
    assert (len(sent), list(unreadable)) == (3, [1])
    found = list(postgres_messages(rows))
    assert [malformed is None for _, _, malformed in found] == [True, False, True]
    assert (found[1][1].type, found[1][1].payload, found[1][1].key) == ("", b"{}", b"k")


@pytest.mark.parametrize("time", [b"infinity", b"-infinity", b"10000-01-01T00:00:00+00:00", b"0044-03-15 BC"])
def test_a_time_that_only_postgresql_knows_is_sent_and_delivered(time: bytes) -> None:
    ((_, message, malformed),) = postgres_messages([postgres_row(1, time=time)])
    assert malformed is None
    storable(message)


@pytest.mark.parametrize("text", ["infinity", "x", "9999-12-31T23:59:59.999999-14:00", ""])
def test_the_time_a_message_brought_along_is_one_or_is_dropped(text: str) -> None:
    headers = msgspec.json.encode({"ce_time": text}).decode()
    ((_, message, malformed),) = postgres_messages([postgres_row(1, headers=headers)])
    assert malformed is None and "ce_time" not in message.headers
    storable(message)


SQLITE = ("t", b"k", "x", 1, None, None, None, b"{}", "application/json", None)


@pytest.mark.parametrize(
    "row",
    [
        ("no uuid", "event", *SQLITE, 1),
        (7, "event", *SQLITE, 1),
        (b"\xff", "event", *SQLITE, 1),
        (str(uuid7()), "event", *SQLITE[:-1], "[]", 1),
        (str(uuid7()), "event", *SQLITE, "soon"),
        (str(uuid7()), "event", b"t", *SQLITE[1:], 1),
        (str(uuid7()), "event", *SQLITE[:2], b"\xff", *SQLITE[3:], 1),
        (str(uuid7()), b"event", *SQLITE, 1),
    ],
)
def test_a_row_of_sqlite_that_cannot_be_read_spoils_itself_only(row: tuple[Any, ...]) -> None:
    good = (str(uuid7()), "event", *SQLITE, 1)
    sent, unreadable = page_reader("sqlite")([(1, 0, *good), (2, 0, *row), (3, 0, *good)])
    assert (len(sent), list(unreadable)) == (3, [1])
    assert isinstance(sent[1], Message)
    assert sent[1].topic == "t"
    storable(sent[1])


@pytest.mark.parametrize("created_ms", [2**62, -(2**62), 253_402_300_800_000])
def test_a_time_of_sqlite_that_no_date_can_be_is_clamped(created_ms: int) -> None:
    (found,), unreadable = page_reader("sqlite")([(1, 0, str(uuid7()), "event", *SQLITE, created_ms)])
    assert not unreadable and found.created_at in (EARLIEST, LATEST)


# -- the wire ---------------------------------------------------------------------------------------------------------

Decode = Callable[[list[tuple[str, Any]]], Any]


def decoded(headers: list[tuple[str, Any]]) -> Any:
    return wire.decode("t", None, b"", headers, arrived_at=EPOCH, shard="t/0", position=1)


def test_of_an_attribute_that_repeats_the_first_counts() -> None:
    first, second = str(uuid7()).encode(), str(uuid7()).encode()
    message = decoded([("ce_id", first), ("CE_Id", second), ("ce_type", b"a"), ("ce_TYPE", b"b"),
                       ("content-type", b"text/x"), ("Content-Type", b"text/y")])  # fmt: skip
    assert (str(message.event_id).encode(), message.type, message.content_type) == (first, "a", "text/x")
    assert message.headers == {}


@pytest.mark.parametrize("ids", [(b"\xff", b"\xfe"), (b"a\x00", b"a\xff"), (b"\xed\xa0\x80", b"\xed\xa0\x81")])
def test_ids_that_differ_are_two_messages_whatever_their_bytes(ids: tuple[bytes, bytes]) -> None:
    first, second = (decoded([("ce_id", id)]).event_id for id in ids)
    assert first != second
    assert first == decoded([("ce_id", ids[0])]).event_id


@given(st.lists(st.tuples(st.text(st.characters()) | st.just("ce_time"), st.none() | st.binary() | st.text())))
def test_any_headers_are_decoded(headers: list[tuple[str, Any]]) -> None:
    storable(decoded(headers))


def test_a_stand_in_says_why_and_no_handler_can_be_declared_for_it() -> None:
    message, reason = wire.stand_in("t", b"k", b"\x00", shard="t/0", position=1, error=ValueError("a\x00b" * 1000))
    assert (message.type, message.payload, message.headers) == ("", b"\x00", {wire.MALFORMED: reason})
    assert len(reason) <= wire.REASON_MAX
    storable(message)
