"""Scripts of a move into or out of the source ``wal``. What they are used for, and why nothing is lost by it:
``relevo.ops.moving_wal``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from relevo.errors import LostOwnershipError
from relevo.ids import bucket_of
from relevo.outgoing import Outgoing, Sendable
from relevo.script import Script, Statement
from relevo.storage import slotting, waling
from relevo.storage.moving import Marked, unowned
from relevo.storage.waling import Aside, Position

PREPARED, OPEN, CLOSED = "insert, truncate", "insert", ""
"""What the publication publishes before a move into ``wal`` is over, while it is read, and once the source is another.
By it an append without a table sees whether it is read, and refuses if not."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The position, fixed: nobody else moves it while ``epoch`` holds."""

    slot: str
    holder: UUID
    epoch: int
    position: Position


def take(slot: str, holder: UUID, lease_s: float) -> Script[Taken | None]:
    """Become the only one who moves the position; ``None`` while a relay reads, or without a position."""
    rows = yield Statement("moving_wal.take", {"slot": slot, "holder": holder, "lease_s": lease_s})
    return Taken(slot, holder, int(rows[0][0]), Position(int(rows[0][1]), int(rows[0][2]))) if rows else None


def flush() -> Script[None]:
    """Alone in its transaction: everything that has committed by now is on disk afterwards, and so in the stream."""
    yield Statement("moving_wal.flush")


def flushed() -> Script[int]:
    return int((yield Statement("moving_wal.flushed"))[0][0])


def look() -> Script[tuple[str, int]]:
    """A snapshot, and the newest number: drawn after it, so no row that the snapshot shows has a higher one."""
    snapshot = yield Statement("wal.snapshot")
    rows = yield Statement("moving_wal.top")
    return str(snapshot[0][0]), int(rows[0][0])


def newest() -> Script[int]:
    """An xid, drawn now: every transaction that runs has an older one. A snapshot's ``xmax`` would not do: it stands
    behind the newest transaction that has *ended*, and younger ones may run."""
    return int((yield Statement("moving_wal.newest"))[0][0])


def xmin() -> Script[int]:
    """Every transaction with an older xid than this has ended."""
    return int((yield Statement("moving_wal.xmin"))[0][0])


def older(xid: int) -> Script[int]:
    """How many sessions see this database as it was before ``xid`` was drawn (once ``xmin`` is above it)."""
    return int((yield Statement("moving_wal.older", {"xid": xid}))[0][0])


def alone(epochs: Mapping[int, int]) -> Script[None]:
    """Nobody owned a lane since ``epochs`` were read, and nobody takes one until the surrounding transaction ends; else
    ``LostOwnershipError``: what it would write is about what relays do not have in hand."""
    unowned((yield Statement("moving_wal.share_lanes")), epochs)


def publish(what: str) -> Script[None]:
    """``PREPARED``, ``OPEN`` or ``CLOSED``."""
    yield Statement("moving_wal.say", {"what": what})
    yield Statement("moving_wal.publish")


def mark(after: int, top: int, limit: int, snapshot: str, still: Sequence[int]) -> Script[Marked]:
    """Markers for a page of rows behind ``after`` up to ``top`` that ``snapshot`` shows, but for ``still``, ascending:
    unsettled."""
    last, seen = (yield Statement("moving_wal.page", {"after": after, "top": top, "limit": limit}))[0]
    if not seen:
        return Marked(None, 0, 0)
    among = list(still[bisect_right(still, after) : bisect_right(still, last)])
    params = {"after": after, "last": last, "snapshot": snapshot, "open": among}
    return Marked(last, seen, len((yield Statement("moving_wal.mark", params))))


def unsettled(origin: str, snapshot: str, after: int, limit: int) -> Script[list[int]]:
    """What ``snapshot`` shows behind ``after`` and ``origin`` has not settled, in order."""
    params = {"after": after, "snapshot": snapshot, "limit": limit}
    return [int(row[0]) for row in (yield Statement(f"moving_wal.open_{origin}", params))]


def copy(seqs: Sequence[int]) -> Script[None]:
    """Rows into the queues of their keys, and their markers, in one transaction: they go before anything newer, whoever
    reads. Only while no relay owns a lane."""
    yield Statement("moving_wal.keys", {"seqs": list(seqs)})
    yield Statement("moving_wal.copy", {"seqs": list(seqs)})
    yield Statement("mark.settle", {"seqs": list(seqs), "outcome": "held"})


def enter(
    slot: str, holder: UUID, system: tuple[str, int], start: int, reached: int, asides: Sequence[Aside]
) -> Script[None]:
    """In the transaction of the switch: the slot begins at ``start`` and everything up to ``reached`` is settled, or
    held by then."""
    yield from slotting.begin(slot, system, start)
    taken = yield from take(slot, holder, 60.0)
    if taken is None:
        raise LostOwnershipError(f"the position of {slot} was taken by a relay in between")
    yield from waling.save(slot, holder, taken.epoch, Position(reached), asides)
    yield from waling.leave(slot, holder, taken.epoch)
    yield from publish(OPEN)


def leave(taken: Taken, reached: int, asides: Sequence[Aside]) -> Script[None]:
    """In the transaction of the switch: the slot is read no more, and appends without a table refuse from now on."""
    yield from waling.save(taken.slot, taken.holder, taken.epoch, Position(reached), asides)
    yield from publish(CLOSED)


def append(messages: Sequence[Sendable]) -> Script[None]:
    """Events that stand in no table, as rows of the outbox, in order."""
    if messages:
        columns = {
            "event_id": [each.event_id for each in messages],
            "bucket": [bucket_of(each.key, each.event_id) for each in messages],
            "headers": [each.headers_text if isinstance(each, Outgoing) else None for each in messages],
        }
        names = ("kind", "topic", "key", "type", "schema_version", "aggregate_type", "aggregate_id")
        for name in (*names, "aggregate_version", "payload", "content_type"):
            columns[name] = [getattr(each, name) for each in messages]
        yield Statement("append.many", columns)
