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
TAKE_S = 1.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """``messages``, in the shards that are ours; ``elsewhere``: how many shards are not."""

    messages: int
    elsewhere: int


EMPTY = Waiting(0, 0)


@dataclass(slots=True)
class Returned:
    """``queued`` for their keys; ``redriven``: copies of what was still parked, so that its key drains; ``known``:
    processed since, so left alone. ``left``: what stands there at the end."""

    queued: int = 0
    redriven: int = 0
    known: int = 0
    left: Waiting = EMPTY


async def waiting(subscription: Subscription, *, wait_s: float) -> Waiting:
    """What stands in the dead-letter topic and nobody brought back yet. Waits for the broker to assign all shards."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        found = await _look(subscription)
        if not found.elsewhere or asyncio.get_running_loop().time() > deadline:
            return found
        taken = await subscription.take(1, 0.2)
        if taken:
            await subscription.hand_back(taken)


async def bring_back(
    database: Database, subscription: Subscription, operator: Operator, *, most: int, wait_s: float
) -> Returned:
    """Queue what stands in the dead-letter topic for its key again, and settle it there.

    Ends after ``most`` messages, since what fails again meanwhile is a new letter; when all shards are empty; or when
    nothing came for ``wait_s`` although there is something, or another reader has some of the shards.

    Raises ``RefusedError`` at a message that Relevo did not put there; what came before it is brought back.
    """
    returned = Returned()
    count = empty = 0
    deadline = asyncio.get_running_loop().time() + wait_s
    while count < most:
        deliveries = await subscription.take(min(BATCH, most - count), min(TAKE_S, wait_s / 2))
        if not deliveries:
            # Twice: in a cluster a queue may say that it has given its last message before that message is here.
            empty = empty + 1 if await _look(subscription) == EMPTY else 0
            if empty == 2 or asyncio.get_running_loop().time() > deadline:
                break
            continue
        count += len(deliveries)
        deadline = asyncio.get_running_loop().time() + wait_s
        letters = [(delivery, original(delivery)) for delivery in deliveries]
        await database.run(_back(letters, operator, returned))
        probe("parked.brought_back")
        await subscription.settle(deliveries)
        await subscription.flush()
    returned.left = await _look(subscription)
    return returned


async def _look(subscription: Subscription) -> Waiting:
    lag = await subscription.lag()
    # At least one, where none is ours: of a topic that is not there nobody knows how many it has.
    shards = await subscription.shard_count() if lag else 1
    return Waiting(sum(lag.values()), max(0, shards - len(lag)))


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
