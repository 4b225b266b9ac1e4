"""Scripts of held keys: hold a key, queue behind it, claim what is due, drain it. Either side of the broker.

State key = (side, consumer, topic, key); a live key has no row. Only the owner of the lane or shard makes live → held.
Every other change locks the row first; whatever empties the queue under that lock makes the key live again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

from relevo.ids import bucket_of
from relevo.message import Message
from relevo.script import Row, Script, Statement
from relevo.storage import inboxing
from relevo.storage.inboxing import Bounds
from relevo.storage.rows import held_copy
from relevo.times import to_us

Side = Literal["relay", "consumer"]
HeldState = Literal["waiting", "parked", "draining"]
Held = Literal["held", "behind", "done"]

STATE_KEY_MAX: Final = 1024
"""Bytes of a key that stand in an index. PostgreSQL takes about 2,700 for a whole entry; strangers send any."""


@dataclass(frozen=True, slots=True)
class KeyId:
    """Which key. ``alone``: one message without order, held under its ``event_id`` and not as a key's sequence."""

    side: Side
    consumer: str
    topic: str
    key: bytes
    alone: bool = False

    def params(self) -> dict[str, Any]:
        return {"side": self.side, "consumer": self.consumer, "topic": self.topic, "key": self.key}


def state_key(key: bytes) -> bytes:
    """A key as it stands in the held tables' indexes: itself, or its digest where it is too long for one."""
    return key if len(key) <= STATE_KEY_MAX else b"sha256:" + hashlib.sha256(key).digest()


def key_id(side: Side, consumer: str, message: Message, *, ordered: bool = True) -> KeyId:
    """The state key of a message: its own key, or its ``event_id`` where it has none or order does not matter. A key
    too long for an index stands there as its digest; the message keeps it whole."""
    if message.key is None or not ordered:
        return KeyId(side, consumer, message.topic, message.event_id.bytes, alone=True)
    return KeyId(side, consumer, message.topic, state_key(message.key))


@dataclass(frozen=True, slots=True)
class Why:
    """Why a key is held, for people: safe text, already cut and cleaned."""

    reason: str
    error_type: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A key this process drains. ``suspect``: its last holder left it without a word, perhaps killed by its head."""

    id: KeyId
    epoch: int
    attempts: int
    suspect: bool


@dataclass(frozen=True, slots=True)
class Head:
    """The first message of a claimed key's queue; ``attempts`` includes the one about to be made."""

    held_seq: int
    message: Message
    shard: str
    position: int
    attempts: int
    unreadable: str | None = None
    """Why its row cannot be read; ``message`` is a stand-in then."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The claim is gone: somebody else drains the key, or it is live."""


def insert_live(id: KeyId, message: Message, bounds: Bounds) -> Script[str | None]:
    """Write the inbox row of a message whose key is live, in one round trip; returns as ``inboxing.insert_soon``.
    ``None`` also where the key is held: ``queued_behind`` tells the two apart."""
    rows = yield Statement("inbox.insert_live", {**id.params(), "event_id": str(message.event_id), **bounds.params()})
    return str(rows[0][0]) if rows else None


def queued_behind(id: KeyId, message: Message, shard: str, position: int | None, bounds: Bounds) -> Script[Held | None]:
    """If the key is held, queue the message behind it under the key's lock: ``"behind"``, or ``"done"`` when the inbox
    knows it. ``None``: the key is live, and nothing was written.

    The queue is in the order of ``position``. ``None``: behind everything there is, by the database's clock; for a
    broker whose positions mean nothing outside the process that counted them. ``bounds``: of the transaction.
    """
    rows = yield Statement("held.lock_key_soon", {**id.params(), **bounds.params()})
    if not rows:
        return None
    return (yield from _append(id, message, shard, position))


def among(side: Side, consumer: str, keys: Collection[tuple[str, bytes]]) -> Script[set[tuple[str, bytes]]]:
    """Those of ``keys`` (topic and key) that are held just now. Locks nothing."""
    topics, names = [topic for topic, _ in keys], [key.hex() for _, key in keys]
    rows = yield Statement("held.among", {"side": side, "consumer": consumer, "topics": topics, "keys": names})
    return {(topic, bytes.fromhex(key)) for topic, key in rows}


def hold(
    id: KeyId,
    message: Message,
    shard: str,
    position: int | None,
    *,
    state: HeldState,
    why: Why,
    attempts: int,
    delay_s: float | None,
) -> Script[Held]:
    """Make a live key held with this message first (``"held"``), or queue behind if it is held already.

    Only for the owner of the lane or shard. On the consumer's side a message the inbox knows is ``"done"``, and nothing
    is held. ``delay_s``: due that many seconds from now by the database's clock; ``None`` for parked. ``position``:
    as in ``queued_behind``.
    """
    while True:
        rows = yield Statement("held.lock_key", id.params())
        if rows:
            return (yield from _append(id, message, shard, position))
        if id.side == "consumer" and (yield from inboxing.find(id.consumer, message.event_id)):
            return "done"
        added = yield Statement(
            "held.add_key",
            {
                **id.params(),
                "alone": int(id.alone),
                "bucket": bucket_of(message.key, message.event_id),
                "state": state,
                "reason": why.reason,
                "error_type": why.error_type,
                "error": why.error,
                "attempts": attempts,
                "delay_s": delay_s,
            },
        )
        if added:
            break
        # A former owner of the shard came in between. Look again under its lock: it may even be live again by then,
        # and a copy without a key would never be drained.
    yield _copy(id, message, shard, position)
    return "held"


def _append(id: KeyId, message: Message, shard: str, position: int | None) -> Script[Held]:
    if id.side == "consumer" and (yield from inboxing.find(id.consumer, message.event_id)):
        return "done"
    yield _copy(id, message, shard, position)
    return "behind"


def _copy(id: KeyId, message: Message, shard: str, position: int | None) -> Statement:
    return Statement(
        "held.append",
        {
            "side": id.side,
            "consumer": id.consumer,
            "topic": id.topic,
            "held_key": id.key,
            "event_id": str(message.event_id),
            "position": position,
            "shard": shard,
            "bucket": bucket_of(message.key, message.event_id),
            "kind": message.kind,
            "key": message.key,
            "type": message.type,
            "schema_version": message.schema_version,
            "aggregate_type": message.aggregate_type,
            "aggregate_id": message.aggregate_id,
            "aggregate_version": message.aggregate_version,
            "payload": message.payload,
            "content_type": message.content_type,
            "headers": json.dumps(dict(message.headers)) if message.headers else None,
            "created_us": to_us(message.created_at),
        },
    )


def next_due(side: Side, consumer: str) -> Script[float | None]:
    """Seconds until a key can be claimed (0: now), or ``None`` when none is waiting or draining."""
    rows = yield Statement("held.next_due", {"side": side, "consumer": consumer})
    return float(rows[0][0]) if rows else None


def claim_due(side: Side, consumer: str, holder: UUID, lease_s: float, limit: int) -> Script[list[Claimed]]:
    """Claim up to ``limit`` keys that are due, or whose holder's lease ran out. Keys another process is claiming are
    skipped. Each claim raises the key's epoch."""
    rows = yield Statement("held.due", {"side": side, "consumer": consumer, "limit": limit})
    claimed = []
    for topic, key, alone, _, attempts, left_behind in rows:
        id = KeyId(side, consumer, topic, bytes(key), bool(alone))
        epochs = yield Statement("held.claim", {**id.params(), "holder": str(holder), "lease_s": lease_s})
        claimed.append(Claimed(id, epochs[0][0], attempts, bool(left_behind)))
    return claimed


def head(claim: Claimed, *, lease_s: float, spend: int = 1) -> Script[Head | Lost | None]:
    """The first queued message, its attempt counted and the lease renewed before it runs.

    ``None``: the queue is empty; under the lock the key became live. ``spend``: 0 for a rerun that costs no attempt.
    """
    rows = yield Statement("held.lock_key", claim.id.params())
    if not rows or rows[0][1] != claim.epoch:
        return Lost()
    rows = yield Statement("held.first", claim.id.params())
    if not rows:
        yield Statement("held.remove_key", {**claim.id.params(), "epoch": claim.epoch})
        return None
    counted = yield Statement(
        "held.count", {**claim.id.params(), "epoch": claim.epoch, "lease_s": lease_s, "spend": spend}
    )
    return _head(rows[0], counted[0][0])


def remove(claim: Claimed, held_seq: int) -> Script[bool]:
    """The head is done: remove it by id and give the next a fresh count. False: the claim is gone, so roll back."""
    yield Statement("held.remove_message", {"held_seq": held_seq})
    rows = yield Statement("held.advance", {**claim.id.params(), "epoch": claim.epoch})
    return bool(rows)


def put_back(claim: Claimed, *, state: HeldState, why: Why, attempts: int, delay_s: float | None) -> Script[bool]:
    """The head failed again: wait or park, and give the claim up. False: it was gone already."""
    rows = yield Statement(
        "held.put_back",
        {
            **claim.id.params(),
            "epoch": claim.epoch,
            "state": state,
            "reason": why.reason,
            "error_type": why.error_type,
            "error": why.error,
            "attempts": attempts,
            "delay_s": delay_s,
        },
    )
    return bool(rows)


def release(claim: Claimed, *, refund: int) -> Script[bool]:
    """Give the claim up untouched; ``refund``: attempts counted for runs that did not happen."""
    rows = yield Statement("held.release", {**claim.id.params(), "epoch": claim.epoch, "refund": refund})
    return bool(rows)


def later(claim: Claimed, *, refund: int, delay_s: float) -> Script[bool]:
    """Give the claim up for ``delay_s`` seconds, as it is: its head runs in another process just now. ``refund``:
    attempts counted for runs that did not happen."""
    params = {**claim.id.params(), "epoch": claim.epoch, "refund": refund, "delay_s": delay_s}
    return bool((yield Statement("held.later", {**params, "suspect": int(claim.suspect)})))


def renew(side: Side, consumer: str, holder: UUID, lease_s: float) -> Script[int]:
    """Renew the leases of every key ``holder`` drains; returns how many."""
    rows = yield Statement(
        "held.renew", {"side": side, "consumer": consumer, "holder": str(holder), "lease_s": lease_s}
    )
    return len(rows)


def counts(side: Side, consumer: str) -> Script[dict[str, int]]:
    """Held keys by state."""
    rows = yield Statement("held.counts", {"side": side, "consumer": consumer})
    return {row[0]: row[1] for row in rows}


def _head(row: Row, attempts: int) -> Head:
    message, unreadable = held_copy(row)
    return Head(row[0], message, row[15], int(row[14]), attempts, unreadable)
