"""Scripts for draining held keys on the relay's side, under the locks of the lanes they belong to.

The owner of a lane reads what is due, claims it, sends it without a transaction, and settles. A claim says to operators
that messages are on their way; between relays the lane decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from relevo.message import Message
from relevo.ports.database import Dialect
from relevo.script import Row, Script, Statement
from relevo.storage import holding, laning
from relevo.storage.holding import Claimed, KeyId, Why
from relevo.storage.rows import message_reader, stand_in

KeyName = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Queued:
    """One message of a claimed key. ``seq``: its row in the outbox. ``edited``: an operator's, in the place of that
    row's. ``unreadable``: why it cannot be sent; ``message`` is a stand-in then."""

    held_seq: int
    seq: int
    edited: bool
    message: Message
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The head of one key's queue, claimed by this relay."""

    claim: Claimed
    lane: int
    queued: Sequence[Queued]

    @property
    def name(self) -> KeyName:
        return self.claim.id.topic, self.claim.id.key

    @property
    def sendable(self) -> Sequence[Queued]:
        """Up to the first that cannot be read: nothing may pass that one."""
        for index, each in enumerate(self.queued):
            if each.unreadable is not None:
                return self.queued[:index]
        return self.queued


@dataclass(slots=True)
class Ending:
    """What became of a batch. ``published`` and ``skipped`` leave the queue. ``parked``: why the key goes back."""

    batch: Batch
    published: list[Queued] = field(default_factory=list)
    skipped: list[Queued] = field(default_factory=list)
    parked: Why | None = None


@dataclass(frozen=True, slots=True)
class Drained:
    """``live``: keys whose queue is empty. ``lost``: lanes that are somebody else's by now. ``left``: keys with more
    in their queue."""

    live: Collection[KeyName]
    lost: Collection[int]
    left: Collection[KeyName]


def due(
    lanes: Collection[int], lane_count: int, without: Collection[str], limit: int
) -> Script[list[tuple[str, bytes, int]]]:
    """(topic, key, lane) of keys that are to be drained, those waiting longest first. Locks nothing."""
    rows = yield Statement(
        "relay_held.due",
        {"lanes": sorted(lanes), "lane_count": lane_count, "without": sorted(without), "limit": limit},
    )
    return [(topic, bytes(key), lane) for topic, key, lane in rows]


def claim(
    holder: UUID,
    lanes: Mapping[int, int],
    keys: Sequence[tuple[str, bytes, int]],
    *,
    dialect: Dialect,
    lease_s: float,
    messages_max: int,
    bytes_max: int,
) -> Script[tuple[list[Batch], Drained]]:
    """Claim ``keys`` and read the heads of their queues; a key whose queue is empty becomes live."""
    ours = yield from _lock(holder, lanes, {lane for _, _, lane in keys})
    read: Callable[[Row], Message] = message_reader(dialect)
    batches: list[Batch] = []
    live: list[KeyName] = []
    left = messages_max
    share = max(1, messages_max // max(1, len(keys)))
    for topic, key, lane in sorted(keys):
        if lane not in ours or left <= 0 or bytes_max <= 0:
            continue
        id = KeyId("relay", "", topic, key)
        found = yield Statement("held.lock_key", id.params())
        if not found or found[0][0] == "parked":
            continue
        ((epoch,),) = yield Statement("held.claim", {**id.params(), "holder": str(holder), "lease_s": lease_s})
        claimed = Claimed(id, epoch, found[0][2], suspect=False)
        rows = yield Statement(
            "relay_held.heads",
            {"topic": topic, "key": key, "messages_max": min(share, left), "bytes_max": bytes_max},
        )
        if not rows:
            yield Statement("held.remove_key", {**id.params(), "epoch": epoch})
            live.append((topic, key))
            continue
        queued = [_queued(row, read) for row in rows]
        left -= len(queued)
        bytes_max -= sum(len(each.message.payload or b"") for each in queued)
        batches.append(Batch(claimed, lane, queued))
    return batches, Drained(live, {lane for _, _, lane in keys} - ours, ())


def settle(holder: UUID, lanes: Mapping[int, int], endings: Sequence[Ending]) -> Script[Drained]:
    """Remove by id what is done, put back what was refused, make live what is empty. One transaction, under the locks
    of lanes and keys; nothing of a lane or claim that was lost is touched."""
    touched = {ending.batch.lane for ending in endings}
    ours = yield from _lock(holder, lanes, touched)
    live: list[KeyName] = []
    left: list[KeyName] = []
    for ending in sorted(endings, key=lambda each: each.batch.name):
        batch = ending.batch
        id, epoch = batch.claim.id, batch.claim.epoch
        if batch.lane not in ours:
            continue
        found = yield Statement("held.lock_key", id.params())
        if not found or found[0][1] != epoch:
            continue
        yield from _leave(ending.published, "published")
        yield from _leave(ending.skipped, "skipped")
        if not (yield Statement("relay_held.rest", {"topic": id.topic, "key": id.key})):
            yield Statement("held.remove_key", {**id.params(), "epoch": epoch})
            live.append(batch.name)
        elif ending.parked is not None:
            yield from holding.put_back(
                batch.claim, state="parked", why=ending.parked, attempts=batch.claim.attempts, delay_s=None
            )
        else:
            yield from holding.release(batch.claim, refund=0)
            left.append(batch.name)
    return Drained(live, touched - ours, left)


def _leave(gone: Sequence[Queued], outcome: Literal["published", "skipped"]) -> Script[None]:
    if gone:
        yield Statement("relay_held.remove", {"ids": [queued.held_seq for queued in gone]})
        originals = [queued.seq for queued in gone if not queued.edited]
        if originals:
            yield Statement("relay_held.settle", {"seqs": originals, "outcome": outcome})


def _lock(holder: UUID, lanes: Mapping[int, int], wanted: Collection[int]) -> Script[set[int]]:
    return (yield from laning.lock(holder, {lane: lanes[lane] for lane in sorted(wanted) if lane in lanes}))


def _queued(row: Row, read: Callable[[Row], Message]) -> Queued:
    held_seq, seq, edited, *rest = row
    columns = tuple(rest)
    try:
        return Queued(held_seq, seq, bool(edited), read(columns))
    except Exception as error:  # noqa: BLE001 - a row that was written by hand
        reason = f"the row with seq {seq} cannot be read: {error}"
        return Queued(held_seq, seq, bool(edited), stand_in(seq, columns), reason)
