"""Scripts of the source ``wal``: the slot, the reader's lease, the position, and copies of what cannot be sent now.

The position row is the truth, and the slot follows it: everything at or below the row is settled, in one transaction
with the held copies of what was not published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from relevo.errors import LostOwnershipError
from relevo.ids import bucket_of
from relevo.outgoing import Outgoing, Sendable
from relevo.ports.source import Disposition
from relevo.script import Script, Statement
from relevo.storage.marking import PAUSED, held_key

KeyName = tuple[str, bytes]


class Position(NamedTuple):
    """Everything of transactions whose commit record lies before ``lsn`` is settled, and the first ``ordinal`` events
    of the one whose commit record lies at ``lsn``. So ``lsn`` is what the slot may be told."""

    lsn: int
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{lsn_text(self.lsn)}+{self.ordinal}"


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class Stored:
    """The position row. ``holder``: whose lease has not ended."""

    system_id: str
    timeline: int
    position: Position
    epoch: int
    holder: UUID | None


class LiveKeysError(Exception):
    """Keys that were thought held are live. Never leaves the source."""

    def __init__(self, names: set[KeyName]) -> None:
        super().__init__(f"{len(names)} keys are live")
        self.names = names


def stored(slot: str) -> Script[Stored | None]:
    rows = yield Statement("wal.position", {"slot": slot})
    if not rows:
        return None
    system_id, timeline, lsn, ordinal, epoch, holder = rows[0]
    return Stored(system_id, timeline, Position(lsn, ordinal), epoch, holder)


def lease(slot: str, holder: UUID, lease_s: float) -> Script[int | None]:
    """Become the reader or stay it, for ``lease_s`` seconds by the database's clock; the epoch, ``None`` while somebody
    else is."""
    rows = yield Statement("wal.lease", {"slot": slot, "holder": holder, "lease_s": lease_s})
    return int(rows[0][0]) if rows else None


def leave(slot: str, holder: UUID, epoch: int) -> Script[None]:
    yield Statement("wal.leave", {"slot": slot, "holder": holder, "epoch": epoch})


def adopt_timeline(slot: str, holder: UUID, epoch: int, timeline: int) -> Script[None]:
    """After a promotion the position holds: its row was replicated with what it speaks of."""
    yield Statement("wal.timeline", {"slot": slot, "holder": holder, "epoch": epoch, "timeline": timeline})


def system() -> Script[tuple[str, int]]:
    """(system identifier, timeline)."""
    rows = yield Statement("wal.system")
    return str(rows[0][0]), int(rows[0][1])


@dataclass(frozen=True, slots=True)
class Aside:
    """A message that is moved past without being sent: held, so that its copy queues under its key, or skipped.
    ``position``: its ``seq``; below 0 where it is in no table."""

    index: int
    position: int
    message: Sendable
    disposition: Disposition


@dataclass(frozen=True, slots=True)
class Barrier:
    """A point of table and WAL: what ``snapshot`` shows up to ``high_water`` had committed before ``lsn``."""

    snapshot: str
    high_water: int
    lsn: int


def barrier() -> Script[Barrier]:
    """Two statements, each with a snapshot of its own, in this order: run it outside a transaction."""
    snapshot = yield Statement("wal.snapshot")
    rows = yield Statement("wal.high_water")
    return Barrier(snapshot[0][0], int(rows[0][1]), int(rows[0][0]))


def save(
    slot: str,
    holder: UUID,
    epoch: int,
    position: Position,
    asides: Sequence[Aside] = (),
    passed: Barrier | None = None,
) -> Script[None]:
    """Move the position to ``position``, in one transaction with the copies of ``asides``.

    Raises, so that nothing of it happens, ``LostOwnershipError`` if the lease is gone, and ``LiveKeysError`` if a key
    was thought held and is live: its messages must be sent.
    """
    rows = yield Statement(
        "wal.save",
        {"slot": slot, "holder": holder, "epoch": epoch, "lsn": position.lsn, "ordinal": position.ordinal},
    )
    if not rows:
        raise LostOwnershipError(f"the slot {slot} has another reader by now, or its position was moved by hand")
    if passed is not None:
        yield Statement("wal.passed", {"snapshot": passed.snapshot, "high_water": passed.high_water})
    yield from put_aside(asides)


def put_aside(asides: Sequence[Aside]) -> Script[None]:
    """The copies of ``asides``, and the markers of their rows. Raises ``LiveKeysError`` as ``save`` does."""
    held = [aside for aside in asides if aside.disposition.action != "skip"]
    if held:
        yield from _hold(held)
    for outcome, some in (
        ("held", held),
        ("skipped", [aside for aside in asides if aside.disposition.action == "skip"]),
    ):
        seqs = [aside.position for aside in some if aside.position > 0]
        if seqs:  # so few that marking their rows, as the source mark does, costs nothing
            yield Statement("mark.settle", {"seqs": seqs, "outcome": outcome})


def _hold(asides: Sequence[Aside]) -> Script[None]:
    names = [(aside.message.topic, held_key(aside.message)) for aside in asides]
    reasons: dict[KeyName, Aside] = {}
    for name, aside in zip(names, asides, strict=True):
        if aside.disposition.action == "hold":
            reasons.setdefault(name, aside)
    if reasons:
        yield Statement("wal.hold_keys", _keys(reasons))
    wanted = sorted(set(names))
    locked = yield Statement(
        "wal.lock_keys", {"topics": [topic for topic, _ in wanted], "keys": [key for _, key in wanted]}
    )
    live = set(wanted) - {(topic, bytes(key)) for topic, key in locked}
    if live:
        raise LiveKeysError(live)
    yield Statement("wal.hold", _copies(names, asides))


def _keys(reasons: Mapping[KeyName, Aside]) -> dict[str, list[Any]]:
    found = list(reasons.values())
    paused = [aside.disposition.code == PAUSED for aside in found]
    return {
        "topics": [topic for topic, _ in reasons],
        "keys": [key for _, key in reasons],
        "alones": [aside.message.key is None for aside in found],
        "buckets": [bucket_of(aside.message.key, aside.message.event_id) for aside in found],
        # Paused: it waits until it is resumed, nobody needs to look at it.
        "states": ["waiting" if each else "parked" for each in paused],
        "reasons": [aside.disposition.reason for aside in found],
        "codes": [None if each else aside.disposition.code or None for each, aside in zip(paused, found, strict=True)],
    }


def _copies(names: Sequence[KeyName], asides: Sequence[Aside]) -> dict[str, list[Any]]:
    messages = [aside.message for aside in asides]
    return {
        "topics": [message.topic for message in messages],
        "held_keys": [key for _, key in names],
        "event_ids": [message.event_id for message in messages],
        "positions": [aside.position for aside in asides],
        "buckets": [bucket_of(message.key, message.event_id) for message in messages],
        "kinds": [message.kind for message in messages],
        "keys": [message.key for message in messages],
        "types": [message.type for message in messages],
        "schema_versions": [message.schema_version for message in messages],
        "aggregate_types": [message.aggregate_type for message in messages],
        "aggregate_ids": [message.aggregate_id for message in messages],
        "aggregate_versions": [message.aggregate_version for message in messages],
        "payloads": [message.payload for message in messages],
        "content_types": [message.content_type for message in messages],
        "headers": [_headers(message) for message in messages],
        "created_ats": [message.created_at for message in messages],
    }


def _headers(message: Sendable) -> str | None:
    if isinstance(message, Outgoing):
        return message.headers_text
    return msgspec.json.encode(message.headers).decode() if message.headers else None
