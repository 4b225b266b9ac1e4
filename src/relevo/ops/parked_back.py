"""Dead letters back: what stands in a dead-letter topic is queued for its key again, and drains in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from relevo.message import Message
from relevo.ops.parked import Operator
from relevo.ports.broker import Delivery, Subscription
from relevo.ports.database import Database
from relevo.runtime.dead_letters import original
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.storage import auditing, holding, inboxing, parking
from relevo.storage.auditing import Act
from relevo.storage.holding import KeyId, Why

BATCH = 200


@dataclass(slots=True)
class Returned:
    """``queued`` for their keys; ``redriven``: copies of what was still parked, so that its key drains; ``known``:
    processed since, so left alone. ``elsewhere``: shards that somebody else had to the end."""

    queued: int = 0
    redriven: int = 0
    known: int = 0
    elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """``messages``, in the shards that are ours; ``elsewhere``: how many shards are not."""

    messages: int
    elsewhere: int


EMPTY = Waiting(0, 0)


async def waiting(subscription: Subscription, *, wait_s: float) -> Waiting:
    """What stands in the dead-letter topic and nobody brought back yet. Waits for the broker to assign all shards."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        found = await _look(subscription)
        if (found is not None and not found.elsewhere) or asyncio.get_running_loop().time() > deadline:
            return found or Waiting(0, await subscription.shard_count())
        taken = await subscription.take(1, 0.2)
        if taken:
            await subscription.hand_back(taken)


async def bring_back(database: Database, subscription: Subscription, operator: Operator, *, wait_s: float) -> Returned:
    """Queue everything that stands in the dead-letter topic for its key again, and settle it there.

    Ends when all of its shards are empty; or when nothing more came for ``wait_s``, as another reader has some.

    Raises ``RefusedError`` at a message that Relevo did not put there; what came before it is brought back.
    """
    returned = Returned()
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        deliveries = await subscription.take(BATCH, 1.0)
        if not deliveries:
            left = await _look(subscription)
            if left == EMPTY or asyncio.get_running_loop().time() > deadline:
                returned.elsewhere = left.elsewhere if left else await subscription.shard_count()
                return returned
            continue
        deadline = asyncio.get_running_loop().time() + wait_s
        letters = [(delivery, original(delivery)) for delivery in deliveries]
        await database.run(_back(letters, operator, returned))
        probe("parked.brought_back")
        await subscription.settle(deliveries)
        await subscription.flush()


async def _look(subscription: Subscription) -> Waiting | None:
    """``None`` while no shard is ours."""
    lag = await subscription.lag()
    if not lag:
        return None
    return Waiting(sum(lag.values()), max(0, await subscription.shard_count() - len(lag)))


def _back(
    letters: Sequence[tuple[Delivery, tuple[KeyId, Message, str, int | None]]], operator: Operator, returned: Returned
) -> Script[None]:
    queued, redriven, ids = 0, 0, []
    for _, (id, message, shard, position) in letters:
        fate = yield from _one(id, message, shard, position)
        queued += fate == "queued"
        redriven += fate == "redriven"
        if fate != "known":
            ids.append(str(message.event_id))
    if ids:
        act = Act("parked.from-dlq", operator.actor, operator.reason, {"topic": letters[0][0].message.topic})
        yield from auditing.record(act, queued + redriven, detail={"event_ids": ids})
    returned.queued += queued
    returned.redriven += redriven
    returned.known += len(letters) - queued - redriven


def _one(id: KeyId, message: Message, shard: str, position: int | None) -> Script[str]:
    places = yield from parking.of_event(message.event_id)
    if any((place.consumer, place.topic, place.key) == (id.consumer, id.topic, id.key) for place, _ in places):
        yield from parking.free(id)  # the letter was a copy; what it is a copy of still stands in its key's queue
        return "redriven"
    yield from inboxing.forget_given_up(id.consumer, message.event_id)
    why = Why("back from dead letters")
    fate = yield from holding.hold(id, message, shard, position, state="parked", why=why, attempts=0, delay_s=None)
    if fate == "held":
        yield from parking.free(id)
    return "known" if fate == "done" else "queued"
