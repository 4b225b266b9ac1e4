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
from relevo.sources.wal.pgoutput import decode, decode_begin, decode_commit, decode_insert
from relevo.sources.wal.protocol import Decoded, DecodeError, Logical, Relation
from relevo.sources.wal.rows import ReadRow, row_reader, time_writer
from relevo.storage import emitting
from relevo.storage.waling import Position

log = logging.getLogger("relevo.relay")

UNREADABLE_TOPIC = "relevo.unreadable"
"""Where a message is held of which not even the topic can be read."""
_RAW_MAX = 20_000
"""Messages of the server looked at in one go, so that foreign traffic cannot keep the loop from other tasks."""
_DATA, _KEEPALIVE, _INSERT, _BEGIN, _COMMIT = b"wkIBC"
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
    broken_rows: set[int] = field(default_factory=set)
    """Those of ``unreadable`` that stand in the table."""
    more: bool = False
    """The limits ended it, not the stream."""


class Stream:
    """One started stream. ``table``: (schema, name) of the outbox. ``channel``: prefix of messages without a table.
    ``xids``: to be told the xid (its lower 32 bits) of each transaction of a chunk, by the LSN of its commit record.

    Raises what the wire raises, and ``DecodeError`` for bytes that are not the protocol's. Not for two tasks at once.
    """

    def __init__(
        self,
        wire: Wire,
        start: Position,
        table: tuple[str, str],
        channel: str,
        *,
        xids: dict[int, int] | None = None,
    ) -> None:
        self._wire = wire
        self._start = start
        self._table = table
        self._channel = channel
        self._readers: dict[int, ReadRow | None] = {}
        self._open = False
        self._committed_us = 0
        self._lsn = 0
        self._ordinal = 0
        self._fed = 0
        self._chunk = Chunk()
        self._clock: Callable[[int], bytes] = time_writer()
        self._xids = xids
        self.reached = start.lsn
        """Everything that committed before this LSN has been read."""
        self.asked = 0
        """How often the server was asked for a word since it was heard."""

    @property
    def between(self) -> bool:
        """Whether no transaction is half read."""
        return not self._open

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
        if chunk.messages:
            self.asked = 0
        return chunk

    def after(self, chunk: Chunk) -> Position:
        """The position once ``chunk``, the last one read, is settled."""
        last = Position(*chunk.marks[-1])
        return max(last, Position(self.reached)) if self.between else last

    def confirm(self, lsn: int, *, reply: bool = False) -> None:
        """Tell the server that everything that committed before ``lsn`` is settled. Never goes back."""
        self._fed = max(self._fed, lsn)
        self.asked += reply
        now = time.time_ns() // 1000 - _EPOCH_US
        self._wire.send(_STATUS(b"r", self._fed, self._fed, self._fed, now, reply))

    def _run(self, messages_max: int, bytes_max: int) -> None:
        """Read into the chunk until a limit, or until nothing more is there."""
        chunk, receive, start = self._chunk, self._wire.receive, self._start
        messages, marks, readers = chunk.messages, chunk.marks, self._readers
        chunk.more = False
        for _ in range(_RAW_MAX):
            if len(messages) >= messages_max or bytes_max <= 0:
                chunk.more = True
                return
            data = receive()
            if data is None:
                self._wire.fill()
                data = receive()
                if data is None:
                    return
            if data[0] != _DATA:
                self._other(data)
                continue
            if len(data) <= _DATA_HEAD:
                raise DecodeError(f"a data message of {len(data)} bytes")
            kind = data[_DATA_HEAD]
            if kind == _INSERT:
                oid, row = decode_insert(data, _DATA_HEAD)
                reader = readers[oid] if oid in readers else self._unknown(oid)
                if reader is None:
                    continue
                if not self._open:
                    raise DecodeError("a row outside of a transaction")
                self._ordinal += 1
                mark = (self._lsn, self._ordinal)
                if mark <= start:
                    continue
                try:
                    seq, bucket, message = reader(row)
                except Exception as error:  # noqa: BLE001 - this row alone
                    chunk.broken_rows.add(len(messages))
                    self._add_unreadable(data[_DATA_HEAD:], f"a row of the outbox cannot be read: {error}")
                    continue
                chunk.seqs.append(seq)
                chunk.buckets.append(bucket)
                messages.append(message)
                marks.append(mark)
                if message.payload is not None:
                    bytes_max -= len(message.payload)
            elif kind == _BEGIN:
                self._lsn, self._committed_us, xid = decode_begin(data, _DATA_HEAD)
                if self._xids is not None:
                    if not messages:
                        self._xids.clear()
                    self._xids[self._lsn] = xid
                self._open, self._ordinal = True, 0
            elif kind == _COMMIT:
                self._open = False
                self.reached = max(self.reached, decode_commit(data, _DATA_HEAD))
            else:
                before = len(messages)
                self._take(decode(data[_DATA_HEAD:]))
                if len(messages) > before:
                    bytes_max -= len(messages[-1].payload or b"")
        chunk.more = True

    def _other(self, data: bytes) -> None:
        if data[0] != _KEEPALIVE:
            raise DecodeError(f"0x{data[0]:02x} is no message of a replication stream")
        self._keepalive(data)

    def _keepalive(self, data: bytes) -> None:
        if len(data) != _KEEP.size:
            raise DecodeError(f"a keepalive of {len(data)} bytes")
        _, lsn, _, reply = _KEEP.unpack(data)
        self.asked = 0
        if not self._open:
            self.reached = max(self.reached, lsn)
        if reply:
            self.confirm(0)

    def _take(self, message: Decoded) -> None:
        match message:
            case Relation():
                ours = (message.namespace, message.name) == self._table
                self._readers[message.oid] = row_reader(message) if ours else None
            case Logical(True, lsn, prefix, content) if prefix == self._channel and self._counts():
                self._add_emitted(content, lsn)
            case Logical(False, _, prefix, _) if prefix == self._channel:
                log.warning("a message emitted outside of a transaction was ignored: it could not be taken back")
            case _:
                pass  # changes, truncations, types and origins are nothing to the outbox

    def _unknown(self, oid: int) -> ReadRow | None:
        raise DecodeError(f"a row of the table with oid {oid}, whose shape was not told")

    def _counts(self) -> bool:
        """Count one of our messages; false where the position has it settled already."""
        if not self._open:
            raise DecodeError("a message outside of a transaction")
        self._ordinal += 1
        return (self._lsn, self._ordinal) > self._start

    def _add(self, seq: int, bucket: int, message: Sendable) -> None:
        chunk = self._chunk
        chunk.seqs.append(seq)
        chunk.buckets.append(bucket)
        chunk.messages.append(message)
        chunk.marks.append((self._lsn, self._ordinal))

    def _add_emitted(self, content: bytes, lsn: int) -> None:
        try:
            bucket, message = emitting.read(content, self._clock(self._committed_us))
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
