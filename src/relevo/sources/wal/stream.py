"""The replication stream as messages of the outbox, in commit order, and what the server is told in return.

A position is a transaction's commit record and the number of our messages in it; everything the position row has
settled is dropped here. Keepalives say how far the server has come in the WAL, whoever wrote it, so an idle outbox lets
the slot advance; they count only between transactions. Nothing needs to be written for it: no heartbeat table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Protocol

from relevo.ids import bucket_of, foreign_id
from relevo.message import Message
from relevo.outgoing import Sendable
from relevo.sources.wal.pgoutput import decode, decode_insert
from relevo.sources.wal.protocol import Begin, Commit, DecodeError, Insert, Logical, Relation
from relevo.sources.wal.rows import ReadRow, row_reader, time_writer
from relevo.storage import emitting
from relevo.storage.waling import Position

log = logging.getLogger("relevo.relay")

UNREADABLE_TOPIC = "relevo.unreadable"
"""Where a message is held of which not even the topic can be read."""
_RAW_MAX = 20_000
"""Messages of the server looked at in one go, so that foreign traffic cannot keep the loop from other tasks."""
_DATA, _KEEPALIVE, _INSERT = b"wkI"
_DATA_HEAD = 25
_KEEP = Struct(">cQqB")
_STATUS = Struct(">cQQQqB").pack
_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in Unix time


class Wire(Protocol):
    """What a stream needs of ``relevo.clients.replication.ReplicationConnection``."""

    def fill(self) -> None: ...
    def receive(self) -> bytes | None: ...
    def send(self, data: bytes) -> None: ...


@dataclass(slots=True)
class Chunk:
    """Messages in stream order. ``marks``: (LSN of the commit record, number in the transaction) of each."""

    seqs: list[int] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    messages: list[Sendable] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    more: bool = False
    """The limits ended it, not the stream."""


class Stream:
    """One started stream. ``table``: (schema, name) of the outbox. ``channel``: prefix of messages without a table.

    Raises what the wire raises, and ``DecodeError`` for bytes that are not the protocol's. Not for two tasks at once.
    """

    def __init__(self, wire: Wire, start: Position, table: tuple[str, str], channel: str) -> None:
        self._wire = wire
        self._start = start
        self._table = table
        self._channel = channel
        self._readers: dict[int, ReadRow | None] = {}
        self._transaction: Begin | None = None
        self._lsn = 0
        self._ordinal = 0
        self._fed = 0
        self._chunk = Chunk()
        self._clock: Callable[[int], bytes] = time_writer()
        self.reached = start.lsn
        """Everything that committed before this LSN has been read."""
        self.heard_at = time.monotonic()

    @property
    def between(self) -> bool:
        """Whether no transaction is half read."""
        return self._transaction is None

    @property
    def ready(self) -> bool:
        """Whether something was read by ``pump`` that ``read`` has not handed out."""
        return bool(self._chunk.messages)

    def pump(self) -> bool:
        """Take in what is there up to the first message for us; whether there is one (or more to look at)."""
        self._wire.fill()
        if not self._chunk.messages:
            self._run(1, 1)
        return bool(self._chunk.messages) or self._chunk.more

    def read(self, messages_max: int, bytes_max: int) -> Chunk:
        """The next messages, at most so many, and none after ``bytes_max`` of payload."""
        self._run(messages_max, bytes_max - sum(len(message.payload or b"") for message in self._chunk.messages))
        chunk, self._chunk = self._chunk, Chunk()
        return chunk

    def after(self, chunk: Chunk) -> Position:
        """The position once ``chunk``, the last one read, is settled."""
        last = Position(*chunk.marks[-1])
        return max(last, Position(self.reached)) if self.between else last

    def confirm(self, lsn: int, *, reply: bool = False) -> None:
        """Tell the server that everything that committed before ``lsn`` is settled. Never goes back."""
        self._fed = max(self._fed, lsn)
        now = time.time_ns() // 1000 - _EPOCH_US
        self._wire.send(_STATUS(b"r", self._fed, self._fed, self._fed, now, reply))

    def _run(self, messages_max: int, bytes_max: int) -> None:
        """Read into the chunk until a limit, or until nothing more is there."""
        chunk, receive, fill = self._chunk, self._wire.receive, self._wire.fill
        chunk.more = False
        messages = chunk.messages
        started = time.monotonic()
        for _ in range(_RAW_MAX):
            if len(messages) >= messages_max or bytes_max <= 0:
                chunk.more = True
                return
            data = receive()
            if data is None:
                fill()
                data = receive()
                if data is None:
                    return
            self.heard_at = started
            kind = data[0]
            if kind == _DATA:
                if len(data) <= _DATA_HEAD:
                    raise DecodeError(f"a data message of {len(data)} bytes")
                before = len(messages)
                self._take(data[_DATA_HEAD:])
                if len(messages) > before:
                    bytes_max -= len(messages[-1].payload or b"")
            elif kind == _KEEPALIVE:
                self._keepalive(data)
            else:
                raise DecodeError(f"0x{kind:02x} is no message of a replication stream")
        chunk.more = True

    def _keepalive(self, data: bytes) -> None:
        if len(data) != _KEEP.size:
            raise DecodeError(f"a keepalive of {len(data)} bytes")
        _, lsn, _, reply = _KEEP.unpack(data)
        if self._transaction is None:
            self.reached = max(self.reached, lsn)
        if reply:
            self.confirm(0)

    def _take(self, data: bytes) -> None:
        if data[0] == _INSERT:
            oid, row = decode_insert(data)
            reader = self._readers[oid] if oid in self._readers else self._unknown(oid)
            if reader is not None and self._counts():
                try:
                    self._add(*reader(row))
                except (ValueError, TypeError, AttributeError) as error:
                    self._add_unreadable(data, f"a row of the outbox cannot be read: {error}")
            return
        match decode(data):
            case Begin() as begin:
                self._transaction, self._lsn, self._ordinal = begin, begin.final_lsn, 0
            case Commit(_, _, end_lsn):
                self._transaction = None
                self.reached = max(self.reached, end_lsn)
            case Relation() as relation:
                ours = (relation.namespace, relation.name) == self._table
                self._readers[relation.oid] = row_reader(relation) if ours else None
            case Logical(True, lsn, prefix, content) if prefix == self._channel and self._counts():
                self._add_emitted(content, lsn)
            case Logical(False, _, prefix, _) if prefix == self._channel:
                log.warning("a message emitted outside of a transaction was ignored: it could not be taken back")
            case Insert():  # handled above
                raise AssertionError
            case _:
                pass  # changes, truncations, types and origins are nothing to the outbox

    def _unknown(self, oid: int) -> ReadRow | None:
        raise DecodeError(f"a row of the table with oid {oid}, whose shape was not told")

    def _counts(self) -> bool:
        """Count one of our messages; false where the position has it settled already."""
        if self._transaction is None:
            raise DecodeError("a row outside of a transaction")
        self._ordinal += 1
        return (self._lsn, self._ordinal) > self._start

    def _add(self, seq: int, bucket: int, message: Sendable) -> None:
        chunk = self._chunk
        chunk.seqs.append(seq)
        chunk.buckets.append(bucket)
        chunk.messages.append(message)
        chunk.marks.append((self._lsn, self._ordinal))

    def _add_emitted(self, content: bytes, lsn: int) -> None:
        assert self._transaction is not None
        try:
            bucket, message = emitting.read(content, self._clock(self._transaction.committed_us))
            self._add(-lsn, bucket, message)  # no row has such a number
        except ValueError as error:  # msgspec's errors are
            self._add_unreadable(content, f"an emitted message cannot be read: {error}")

    def _add_unreadable(self, raw: bytes, why: str) -> None:
        """A stand-in that is held with its bytes as they came, so that nothing is lost."""
        identity = foreign_id("wal", str(self._lsn), str(self._ordinal))
        message = Message(
            event_id=identity,
            type=UNREADABLE_TOPIC,
            topic=UNREADABLE_TOPIC,
            payload=raw,
            created_at=datetime.now(UTC),
            content_type="application/octet-stream",
        )
        self._chunk.unreadable[len(self._chunk.messages)] = why
        self._add(-self._lsn, bucket_of(None, identity), message)


__all__: list[Any] = ["UNREADABLE_TOPIC", "Chunk", "Stream", "Wire"]
