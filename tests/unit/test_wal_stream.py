"""The stream over a wire that the test writes: positions, restarts, foreign and broken input."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack, unpack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.message import Message
from relevo.sources.wal.protocol import Begin, Column, Commit, Decoded, DecodeError, Insert, Logical, Relation, Text
from relevo.sources.wal.rows import COLUMNS
from relevo.sources.wal.stream import UNREADABLE_TOPIC, Chunk, Stream
from relevo.storage import emitting
from relevo.storage.waling import Position
from tests.support.pgoutput import encode
from tests.unit.test_wal_window import message

OUTBOX = Relation(
    7, "public", "relevo_outbox", 100, tuple(Column(0, name, oids[0], -1) for name, oids in COLUMNS.items())
)
BEGINNING = Position(50)
OTHER = Relation(8, "public", "orders", 100, (Column(1, "id", 23, -1),))


class Tape:
    """Messages as if they came over a socket: ``parts`` at a time are there, then the next ``fill`` brings more."""

    def __init__(self, messages: list[bytes], parts: int = 1_000_000) -> None:
        self._messages = iter(messages)
        self._there: list[bytes] = []
        self._parts = parts
        self.sent: list[bytes] = []

    def fill(self) -> None:
        while len(self._there) < self._parts:
            data = next(self._messages, None)
            if data is None:
                return
            self._there.append(data)

    def receive(self) -> bytes | None:
        return self._there.pop(0) if self._there else None

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    @property
    def told(self) -> int:
        return int(unpack(">cQQQqB", self.sent[-1])[2])


def data(message: Decoded) -> bytes:
    return b"w" + pack(">QQq", 0, 0, 0) + encode(message)


def keepalive(lsn: int, reply: bool = False) -> bytes:
    return b"k" + pack(">QqB", lsn, 0, reply)


def row(number: int, payload: bytes | None = None) -> Insert:
    values = [
        pack(">q", number), pack(">h", number % 1024), b"topic", b"key", payload or b"%d" % number,
        number.to_bytes(16, "big"), pack(">q", number), b"event", b"T", pack(">i", 1), b"application/json",
        None, None, None, None,
    ]  # fmt: skip
    return Insert(7, list(values))


def transaction(number: int, count: int, first: int) -> Iterator[bytes]:
    """Commits at LSN 100·number; foreign rows and messages in between."""
    yield data(Begin(100 * number, 0, number))
    for each in range(count):
        yield data(Insert(8, [Text(b"1")]))
        yield data(row(first + each))
        yield data(Logical(True, 5, "somebody", b"\x00"))
    yield data(Commit(0, 100 * number, 100 * number + 10, 0))


def tape(counts: list[int]) -> list[bytes]:
    messages = [data(OUTBOX), data(OTHER)]
    first = 0
    for number, count in enumerate(counts, 1):
        messages += transaction(number, count, first)
        first += count
    return messages


def stream(messages: list[bytes], start: Position = BEGINNING, parts: int = 1_000_000) -> tuple[Stream, Tape]:
    wire = Tape(messages, parts)
    return Stream(wire, start, ("public", "relevo_outbox"), "relevo_outbox"), wire


def payloads(chunk: Chunk) -> list[int]:
    return [int(each.payload or b"") for each in chunk.messages]


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 4), st.integers(1, 7), st.integers(0, 40))
def test_every_message_once_wherever_it_is_cut(counts: list[int], size: int, parts: int, crash_at: int) -> None:
    """FAILURES rows 23 and 24: pages of any size, input in any pieces, and a restart from the position after any page:
    nothing is read twice, nothing is left out."""
    reader, _ = stream(tape(counts), parts=parts)
    seen: list[int] = []
    position = Position(50)
    restarted = False
    while True:
        chunk = reader.read(size, 10**9)
        if not chunk.messages and not chunk.more:
            break
        if chunk.messages:
            seen += payloads(chunk)
            position = reader.after(chunk)
        if not restarted and len(seen) >= crash_at:
            restarted = True
            # The server sends whole transactions again whose commit record is not before what the slot was told.
            again = [data(OUTBOX), data(OTHER)]
            first = 0
            for number, count in enumerate(counts, 1):
                if 100 * number >= position.lsn:
                    again += transaction(number, count, first)
                first += count
            reader, _ = stream(again, position, parts)
    assert seen == list(range(sum(counts)))


def test_a_whole_transaction_is_passed_and_a_part_is_not() -> None:
    reader, _ = stream(tape([2, 1]))
    one = reader.read(1, 10**9)
    assert (payloads(one), reader.after(one)) == ([0], Position(100, 1))
    rest = reader.read(10, 10**9)
    assert (payloads(rest), reader.after(rest)) == ([1, 2], Position(210))


def test_keepalives_count_between_transactions_only() -> None:
    """FAILURES row 25: foreign WAL lets the position move; in the middle of a transaction it must not."""
    begin, *rest = list(transaction(3, 1, 0))
    reader, wire = stream(
        [keepalive(200), data(OUTBOX), data(OTHER), begin, keepalive(9000), *rest, keepalive(9500, True)]
    )
    assert not reader.pump() or reader.ready
    chunk = reader.read(10, 10**9)
    assert payloads(chunk) == [0] and reader.reached == 9500
    assert wire.told == 0  # asked for a sign of life, and told nothing new
    reader.confirm(310)
    reader.confirm(200)
    assert wire.told == 310


def test_bytes_limit_a_page() -> None:
    messages = [data(OUTBOX), data(Begin(100, 0, 1)), *(data(row(n, b"x" * 100)) for n in range(10))]
    chunk = stream(messages)[0].read(100, 250)
    assert len(chunk.messages) == 3 and chunk.more


def test_foreign_traffic_does_not_keep_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.sources.wal.stream._RAW_MAX", 10)
    reader, _ = stream([keepalive(100)] * 35 + tape([1]))
    assert [reader.read(5, 10**9).more for _ in range(3)] == [True, True, True]
    assert payloads(reader.read(5, 10**9)) == [0]


@pytest.mark.parametrize(
    "bad",
    [
        b"x123",
        b"w",
        b"w" + b"\0" * 24,
        b"k" + b"\0" * 5,
        data(row(1)),  # before its table's shape, outside of a transaction
        data(Begin(1, 1, 1))[:-1],
        b"w" + b"\0" * 24 + b"S" + b"\0" * 5,
    ],
)
def test_what_is_not_the_protocol_is_an_error(bad: bytes) -> None:
    """FAILURES row 28: an unknown or broken message is a clear error, never a wrong row."""
    reader, _ = stream([bad])
    with pytest.raises(DecodeError):
        reader.read(10, 10**9)


def test_a_table_of_another_shape_is_an_error() -> None:
    columns = tuple(Column(0, c.name, 25 if c.name == "payload" else c.type_oid, -1) for c in OUTBOX.columns)
    with pytest.raises(DecodeError, match=r"'payload'.*another type"):
        stream([data(Relation(7, "public", "relevo_outbox", 100, columns))])[0].read(1, 1)
    with pytest.raises(DecodeError, match="leaves out the column 'headers'"):
        stream([data(Relation(7, "public", "relevo_outbox", 100, OUTBOX.columns[:-1]))])[0].read(1, 1)


def test_emitted_messages() -> None:
    """Events without a table: equal to what was given but for the time, which is the transaction's; garbage under our
    prefix is kept as it came, to be held."""
    given = message(5)
    messages = [
        data(Begin(100, 1_000_000, 1)),
        data(Logical(True, 77, "relevo_outbox", emitting.content(given))),
        data(Logical(True, 78, "relevo_outbox", b"garbage")),
        data(Logical(False, 79, "relevo_outbox", emitting.content(given))),
        data(Commit(0, 100, 110, 1_000_000)),
    ]
    chunk = stream(messages)[0].read(10, 10**9)
    first, second = chunk.messages
    assert not isinstance(first, Message)
    found = first.message()
    assert found.created_at.isoformat() == "2000-01-01T00:00:01+00:00"
    assert msgspec.structs.replace(found, created_at=given.created_at) == given
    assert list(chunk.unreadable) == [1]
    assert chunk.broken_rows == set(), "it is in no table"
    assert (second.topic, second.payload) == (UNREADABLE_TOPIC, b"garbage")
    assert chunk.seqs[0] == -77


@given(st.binary(max_size=80))
def test_emitted_noise(noise: bytes) -> None:
    """Any content under our prefix is read or set aside, never an exception."""
    messages = [data(Begin(100, 0, 1)), data(Logical(True, 77, "relevo_outbox", noise)), data(Commit(0, 100, 110, 0))]
    chunk = stream(messages)[0].read(10, 10**9)
    assert len(chunk.messages) == 1
    assert chunk.unreadable or not isinstance(chunk.messages[0], Message)


def test_xids_of_a_chunk_and_no_others() -> None:
    """Whoever asks is told the xid of every message at hand, also of a transaction that began in the chunk before; and
    what is kept for it does not grow with the stream."""
    xids: dict[int, int] = {}
    tape = [data(OUTBOX), data(OTHER)]
    tape += [part for number in range(1, 200) for part in transaction(number, 0 if number % 5 else 3, 3 * number)]
    stream = Stream(Tape(tape), BEGINNING, ("public", "relevo_outbox"), "channel", xids=xids)
    seen = []
    while chunk := stream.read(2, 1_000_000):
        if not chunk.messages and not chunk.more:
            break
        seen += [(xids[mark[0]], seq) for seq, mark in zip(chunk.seqs, chunk.marks, strict=True)]
        assert len(xids) <= 10
    assert seen == [(number, 3 * number + each) for number in range(5, 200, 5) for each in range(3)]


def test_a_row_that_cannot_be_read_is_told_from_what_is_in_no_table() -> None:
    broken = row(2).new
    broken[6] = b"12"  # a time of two bytes
    emitted = data(Logical(True, 78, "relevo_outbox", b"garbage"))
    messages = [
        data(OUTBOX),
        data(Begin(100, 0, 1)),
        data(row(1)),
        data(Insert(7, broken)),
        emitted,
        data(Commit(0, 100, 110, 0)),
    ]
    chunk = stream(messages)[0].read(10, 10**9)
    assert (list(chunk.unreadable), chunk.broken_rows) == ([1, 2], {1})
