"""Scripts with which people look at held keys and decide about them.

Each act locks the key's row, leaves a key alone that a process is draining right now (``Busy``), raises the key's epoch
so that nobody goes on with an older view, and makes the key live when its queue is empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from relevo.message import Message
from relevo.outgoing import headers_from
from relevo.script import Row, Script, Statement
from relevo.storage import inboxing
from relevo.storage.holding import KeyId, Side
from relevo.storage.rows import stand_in
from relevo.times import from_us

EDITED_FROM = "relevo-edited-from"
"""The header of an edited message that names the one it replaces."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which held keys; what is ``None`` selects nothing less. ``error``: an error group, or an exception type alone.
    ``older_s``: held at least so long. ``event_id``: the key in whose queue that message stands."""

    side: Side | None = None
    consumer: str | None = None
    topic: str | None = None
    key: bytes | None = None
    event_id: UUID | None = None
    error: str | None = None
    older_s: float | None = None

    def params(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "consumer": self.consumer,
            "topic": self.topic,
            "key": self.key,
            "event_id": None if self.event_id is None else str(self.event_id),
            "error": self.error,
            "older_s": self.older_s,
        }

    def document(self) -> dict[str, Any]:
        """For audit and jobs: what was asked for, and nothing else."""
        found = {name: value for name, value in self.params().items() if value is not None}
        if self.key is not None:
            found["key"] = readable(self.key)
        return found


@dataclass(frozen=True, slots=True)
class HeldKey:
    """One held key as it stands. ``claimed``: a process is draining it right now. ``since_s``: seconds ago."""

    id: KeyId
    state: str
    reason: str
    error_type: str | None
    error: str | None
    attempts: int
    since_s: float
    claimed: bool
    messages: int

    @property
    def place(self) -> dict[str, Any]:
        """Where a listing goes on after this key."""
        return {**self.id.params(), "key": self.id.key.hex()}


@dataclass(frozen=True, slots=True)
class Group:
    """Held keys with the same error. ``reason``: of one of them. ``oldest_s``: seconds since the first was held."""

    side: str
    consumer: str
    topic: str
    state: str
    error_type: str | None
    reason: str
    keys: int
    messages: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Queued:
    """One message of a key's queue, in drain order."""

    held_seq: int
    message: Message
    position: int
    shard: str
    edited_from: UUID | None
    held_s: float


@dataclass(frozen=True, slots=True)
class Busy:
    """A process is draining the key right now: nothing was changed."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The key is live, or the message is not in its queue: nothing was changed."""


@dataclass(frozen=True, slots=True)
class Acted:
    """``messages``: how many were freed, dropped or replaced. ``live``: the key has no message left."""

    messages: int
    live: bool = False


Done = Acted | Busy | Gone


def page(selection: Selection, *, state: str | None, after: Mapping[str, Any], limit: int) -> Script[list[HeldKey]]:
    """Held keys in the order of side, consumer, topic and key, after the place ``after`` (empty: from the start)."""
    rows = yield Statement(
        "parked.page",
        {
            **selection.params(),
            "state": state,
            "limit": limit,
            "after_side": after.get("side"),
            "after_consumer": after.get("consumer"),
            "after_topic": after.get("topic"),
            "after_key": bytes.fromhex(after["key"]) if after else None,
        },
    )
    return [_held_key(row) for row in rows]


def groups(selection: Selection, *, state: str | None, limit: int) -> Script[list[Group]]:
    """Everything that is selected, counted by error; the ``limit`` largest groups, by keys."""
    rows = yield Statement("parked.groups", {**selection.params(), "state": state, "limit": limit})
    return [_group(*row) for row in rows]


def queue(id: KeyId, *, offset: int = 0, limit: int) -> Script[list[Queued]]:
    """Messages of a key's queue in drain order."""
    rows = yield Statement("parked.queue", {**id.params(), "limit": limit, "offset": offset})
    return [_queued(id, row) for row in rows]


def of_event(event_id: UUID) -> Script[list[tuple[KeyId, int]]]:
    """The keys in whose queue a message stands, and its ``held_seq`` in each."""
    rows = yield Statement("parked.of_event", {"event_id": str(event_id)})
    return [(KeyId(row[0], row[1], row[2], bytes(row[3])), row[4]) for row in rows]


def free(id: KeyId) -> Script[Done]:
    """Parked → draining: its owner works the queue off in order, arrivals queue behind."""
    found = yield Statement("parked.lock", id.params())
    if not found or found[0][0] == "draining":
        return Busy() if found and found[0][2] else Gone()
    messages = yield Statement("parked.count", id.params())
    yield Statement("parked.free", id.params())
    return Acted(messages[0][0])


def drop(
    id: KeyId, queued: Queued | None, outcome: Literal["skipped", "discarded"], *, then_free: bool = False
) -> Script[Done]:
    """Take one message, if nobody edited it since it was read, or the whole queue out. On the consumer's side the inbox
    says so, so that a redelivery does not bring it back. ``then_free``: if it was the first, the rest drains."""
    found = yield Statement("parked.lock", id.params())
    if not found:
        return Gone()
    if found[0][2]:
        return Busy()
    if queued is not None and not (yield from _stands(queued.held_seq, queued.message.event_id)):
        return Gone()
    first = yield Statement("parked.queue", {**id.params(), "limit": 1, "offset": 0})
    held_seq = None if queued is None else queued.held_seq
    target = {**id.params(), "held_seq": held_seq}
    yield Statement("parked.forget", {**target, "outcome": outcome})
    dropped = yield Statement("parked.drop", target)
    if (yield Statement("parked.live", id.params())):
        return Acted(len(dropped), live=True)
    if then_free and first and first[0][0] == held_seq:
        yield Statement("parked.free", id.params())
    else:
        yield Statement("parked.touch", id.params())
    return Acted(len(dropped))


def drop_some(id: KeyId, epoch: int, held_seqs: Sequence[int]) -> Script[Done]:
    """Take these messages out as skipped, so that they may come back, if nobody has touched the key since it had
    ``epoch``. The epoch stays."""
    found = yield Statement("parked.lock", id.params())
    if not found or found[0][1] != epoch:
        return Gone()
    count = 0
    for held_seq in held_seqs:
        target = {**id.params(), "held_seq": held_seq}
        yield Statement("parked.forget", {**target, "outcome": "skipped"})
        count += len((yield Statement("parked.drop", target)))
    live = yield Statement("parked.live", id.params())
    return Acted(count, live=bool(live))


def epoch(id: KeyId) -> Script[int | Busy | Gone]:
    """The key's epoch, if it is parked."""
    found = yield Statement("parked.lock", id.params())
    if not found or found[0][0] != "parked":
        return Busy() if found and found[0][2] else Gone()
    return int(found[0][1])


def replace(id: KeyId, held_seq: int, new: Message, old_id: UUID) -> Script[Done]:
    """Put ``new`` in the place of a queued message; on the consumer's side the old one's inbox row says discarded."""
    found = yield Statement("parked.lock", id.params())
    if not found:
        return Gone()
    if found[0][2]:
        return Busy()
    if not (yield from _stands(held_seq, old_id)):
        return Gone()
    if id.side == "consumer":
        yield from inboxing.insert(id.consumer, old_id, outcome="discarded")
    yield Statement(
        "parked.replace",
        {
            "held_seq": held_seq,
            "new_id": str(new.event_id),
            "payload": new.payload,
            "headers": json.dumps(dict(new.headers)),
        },
    )
    yield Statement("parked.touch", id.params())
    return Acted(1)


def _stands(held_seq: int, event_id: UUID) -> Script[bool]:
    """Whether the message is still there. An edit gives it another id."""
    return held_seq in [row[4] for row in (yield Statement("parked.of_event", {"event_id": str(event_id)}))]


def readable(raw: bytes) -> str:
    """A key for people: its text, or ``0x…`` where it is none."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return "0x" + raw.hex()
    return text if text.isprintable() else "0x" + raw.hex()


def _held_key(row: Row) -> HeldKey:
    side, consumer, topic, key, alone, state, reason, error_type, error, attempts, since_s, claimed, messages = row
    id = KeyId(side, consumer, topic, bytes(key), bool(alone))
    return HeldKey(id, state, reason, error_type, error, attempts, float(since_s), bool(claimed), messages)


def _group(
    side: str,
    consumer: str,
    topic: str,
    state: str,
    error_type: str | None,
    reason: str,
    keys: int,
    messages: int,
    oldest_s: float,
) -> Group:
    return Group(side, consumer, topic, state, error_type, reason, int(keys), int(messages), float(oldest_s))


def _queued(id: KeyId, row: Row) -> Queued:
    key, payload = (bytes(each) if isinstance(each, bytes | memoryview) else None for each in (row[12], row[7]))
    try:
        message = Message(
            event_id=UUID(row[1]),
            type=row[2],
            topic=id.topic,
            payload=payload,
            created_at=from_us(int(row[16])),
            kind=row[11],
            schema_version=row[10],
            key=key,
            content_type=row[5],
            headers=headers_from(row[6]),
            aggregate_type=row[13],
            aggregate_id=row[14],
            aggregate_version=row[15],
        )
    except Exception:  # noqa: BLE001 - a row that was written by hand: the key's reason says what is wrong with it
        message = stand_in(row[0], (row[1], None, id.topic, key, row[2]), payload=payload)
    edited_from = None if row[8] is None else UUID(row[8])
    return Queued(row[0], message, row[3], row[4], edited_from, float(row[9]))
