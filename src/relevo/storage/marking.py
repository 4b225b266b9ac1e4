"""Scripts of the source ``mark``: take what is unsettled, settle it under the lanes' locks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from relevo.ids import bucket_of
from relevo.outgoing import Sendable
from relevo.ports.database import Dialect
from relevo.ports.source import Disposition, Settled, Taken
from relevo.script import Rows, Script, Statement
from relevo.storage.holding import state_key
from relevo.storage.laning import lock_with_xid, owned

PAUSED = "Paused"
"""Code of a disposition whose key a person paused: it is held, and waits for being resumed."""


def held_key(message: Sendable) -> bytes:
    """Under what a message is held: its key, or, without one, its own id (it is held alone)."""
    return message.event_id.bytes if message.key is None else state_key(message.key)


def take(
    holder: UUID,
    lanes: Mapping[int, int],
    lane_count: int,
    *,
    floor: int,
    after: int,
    in_flight: Sequence[int],
    messages_max: int,
    bytes_max: int,
    without: Collection[str],
) -> Script[Rows]:
    """Rows of ``(seq, lane, event_id, …, xmin)`` in ``seq`` order, without those in flight."""
    rows = yield Statement(
        "mark.take",
        {
            **owned(holder, lanes),
            "lane_count": lane_count,
            "floor": floor,
            "after": after,
            "in_flight": list(in_flight),
            "messages_max": messages_max,
            "bytes_max": bytes_max,
            "without": list(without),
        },
    )
    return rows


def horizon(dialect: Dialect, floor: int, known: int) -> Script[tuple[int, int, int]]:
    """(seq, xmin, xid): the newest unsettled row above ``floor``, whoever it belongs to (0: none); the ``xmin`` of a
    snapshot older than the next page's; where ``seq`` is above ``known``, an xid assigned after it was read, else 0."""
    rows = yield Statement("mark.horizon", {"floor": floor})
    seq, xmin = int(rows[0][0] or 0), int(rows[0][1])
    if seq <= known or dialect == "sqlite":
        return seq, xmin, 0
    xids = yield Statement("mark.xid")
    return seq, xmin, int(xids[0][0])


def unbucketed() -> Script[bool]:
    """Whether rows without a bucket wait: a read, so that a poll of an empty outbox takes no write lock."""
    return bool((yield Statement("mark.unbucketed")))


def fill_buckets() -> Script[int]:
    """Compute the buckets of rows that were appended through the SQL view (SQLite only); returns how many."""
    rows = yield Statement("mark.unbucketed")
    for seq, key, event_id in rows:
        yield Statement("mark.bucket", {"seq": seq, "bucket": bucket_of(key, UUID(event_id))})
    return len(rows)


def load_held(lanes: Collection[int], lane_count: int) -> Script[set[tuple[str, bytes]]]:
    """(topic, held key) of what is held on the relay's side in ``lanes``. Run it after the acquisition committed."""
    rows = yield Statement("relay_held.load", {"lanes": sorted(lanes), "lane_count": lane_count})
    return {(topic, bytes(key)) for topic, key in rows}


@dataclass(slots=True)
class Fates:
    """What becomes of the messages of a page whose lanes are still ours: their ``seq``, and the keys of those to hold.
    ``held``: indexes by (topic, held key). ``reasons``: of keys that become held by it."""

    published: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    held: dict[tuple[str, bytes], list[int]] = field(default_factory=dict)
    reasons: dict[tuple[str, bytes], Disposition] = field(default_factory=dict)


def fates(taken: Taken, dispositions: Mapping[int, Disposition], ours: Collection[int]) -> Fates:
    """Sort a page by what becomes of it. What goes back, and what belongs to a lane that was lost, is in none."""
    found = Fates()
    for index, (seq, lane) in enumerate(zip(taken.seqs, taken.lanes, strict=True)):
        if lane not in ours:
            continue
        disposition = dispositions.get(index)
        if disposition is None:
            found.published.append(seq)
        elif disposition.action == "skip":
            found.skipped.append(seq)
        elif disposition.action in ("hold", "behind"):
            message = taken.messages[index]
            name = (message.topic, held_key(message))
            found.held.setdefault(name, []).append(index)
            if disposition.action == "hold":
                found.reasons.setdefault(name, disposition)
    return found


def mark_published(seqs: Sequence[int]) -> Script[None]:
    """Mark rows that were published."""
    yield Statement("mark.settle", {"seqs": list(seqs), "outcome": "published"})


def put_aside(found: Fates, taken: Taken) -> Script[tuple[int, list[tuple[str, bytes]]]]:
    """Mark what is skipped, copy and mark what is held; returns how many, and the keys that turned out to be live."""
    count = len(found.skipped)
    if found.skipped:
        yield Statement("mark.settle", {"seqs": found.skipped, "outcome": "skipped"})
    live: list[tuple[str, bytes]] = []
    for name in sorted(found.held):
        seqs = yield from _hold(name, found.held[name], found.reasons.get(name), taken)
        if seqs:
            yield Statement("mark.settle", {"seqs": seqs, "outcome": "held"})
            count += len(seqs)
        else:
            live.append(name)
    return count, live


@dataclass(frozen=True, slots=True)
class Marked:
    """What came of a page. ``xid``: of the transaction. ``owed``: (seq → lane) what was published and could not be
    marked, since another session holds the row locked."""

    settled: Settled
    xid: int
    owed: Mapping[int, int]


def settle(
    holder: UUID,
    lanes: Mapping[int, int],
    taken: Taken,
    dispositions: Mapping[int, Disposition],
    *,
    around_locks: bool = False,
) -> Script[Marked]:
    """Move past ``taken`` in the surrounding transaction; nothing of a lane that was lost is touched.

    ``around_locks`` (PostgreSQL): what another session holds locked is left out instead of waited for. A key that was
    to become held is live again then.
    """
    touched = {lane: lanes[lane] for lane in sorted(set(taken.lanes)) if lane in lanes}
    ours, xid = yield from lock_with_xid(holder, touched)
    found = fates(taken, dispositions, ours)
    owed: dict[int, int] = {}
    back: list[tuple[str, bytes]] = []
    if around_locks:
        owed, back = yield from _leave_locked(found, taken)
    if found.published:
        yield from mark_published(found.published)
    aside, live = yield from put_aside(found, taken)
    count = len(found.published) + len(owed) + aside
    return Marked(Settled(count, set(taken.lanes) - ours, [*live, *back]), xid, owed)


def _leave_locked(found: Fates, taken: Taken) -> Script[tuple[dict[int, int], list[tuple[str, bytes]]]]:
    """Take out of ``found`` what is locked; returns what was published of it, and the keys that do not become held."""
    held = [taken.seqs[index] for indexes in found.held.values() for index in indexes]
    rows = yield Statement("mark.free", {"seqs": [*found.published, *found.skipped, *held]})
    free = {row[0] for row in rows}
    lanes = dict(zip(taken.seqs, taken.lanes, strict=True))
    owed = {seq: lanes[seq] for seq in found.published if seq not in free}
    found.published = [seq for seq in found.published if seq in free]
    found.skipped = [seq for seq in found.skipped if seq in free]
    locked = [name for name, indexes in found.held.items() if not free.issuperset(taken.seqs[i] for i in indexes)]
    for name in locked:
        del found.held[name]
    return owed, [name for name in locked if name in found.reasons]


def settle_owed(holder: UUID, lanes: Mapping[int, int], owed: Mapping[int, int]) -> Script[set[int]]:
    """Mark what is owed and free by now; returns the ``seq`` of what still is not."""
    ours, _ = yield from lock_with_xid(holder, {lane: lanes[lane] for lane in sorted({*owed.values()} & lanes.keys())})
    seqs = [seq for seq, lane in owed.items() if lane in ours]
    rows = yield Statement("mark.free", {"seqs": seqs})
    yield from mark_published([row[0] for row in rows])
    rows = yield Statement("mark.open", {"seqs": seqs})
    return {row[0] for row in rows}


def _hold(
    name: tuple[str, bytes], indexes: Sequence[int], reason: Disposition | None, taken: Taken
) -> Script[list[int]]:
    """Copy messages into their key's queue under the key row's lock; an empty list if the key turned out to be live."""
    topic, key = name
    first = taken.messages[indexes[0]]
    if reason is not None:
        params: dict[str, Any] = {
            "topic": topic,
            "key": key,
            "alone": first.key is None,
            "bucket": bucket_of(first.key, first.event_id),
            # Paused by a person: it waits until it is resumed, nobody needs to look at it.
            "state": "waiting" if reason.code == PAUSED else "parked",
            "reason": reason.reason,
            "code": None if reason.code == PAUSED else reason.code,
        }
        yield Statement("relay_held.key", params)
    found = yield Statement("relay_held.lock", {"topic": topic, "key": key})
    if not found:
        return []
    seqs = [taken.seqs[index] for index in indexes]
    yield Statement("mark.hold", {"seqs": seqs, "held_key": key})
    return seqs
