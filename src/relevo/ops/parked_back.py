"""Dead letters back: what stands in a dead-letter topic is queued for its key again, and drains in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from relevo.errors import RefusedError
from relevo.message import Message
from relevo.ops.parked import Operator
from relevo.ports.broker import Delivery, Subscription
from relevo.ports.database import Database
from relevo.runtime.dead_letters import original
from relevo.runtime.probes import probe
from relevo.runtime.texts import clean
from relevo.script import Script
from relevo.storage import auditing, holding, inboxing, parking
from relevo.storage.auditing import Act
from relevo.storage.holding import KeyId, Why, key_id

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
    processed since, so left alone. ``given_up``: discarded or replaced by an edit, so left alone. ``strange``: parked,
    since Relevo did not put them there. ``left``: what stands there at the end."""

    queued: int = 0
    redriven: int = 0
    known: int = 0
    given_up: int = 0
    strange: int = 0
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
    database: Database,
    subscription: Subscription,
    operator: Operator,
    *,
    most: int,
    wait_s: float,
    home: tuple[str, str] | None = None,
    discarded: bool = False,
) -> Returned:
    """Queue what stands in the dead-letter topic for its key again, and settle it there.

    Ends after ``most`` messages, since what fails again meanwhile is a new letter; when all shards are empty; or when
    nothing came for ``wait_s`` although there is something, or another reader has some of the shards.

    A message that Relevo did not put there says not where it belongs. ``home``: the consumer and topic for which it is
    parked, with its reason; without it, such a message raises ``RefusedError`` when those before it are brought back.
    What somebody discarded, or replaced by an edit, stays so: its letter is spent. ``discarded``: it comes back too.
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
        letters, refused = _read(deliveries, home)
        if letters:
            await database.run(_back(letters, operator, returned, discarded))
            probe("parked.brought_back")
            await subscription.settle([letter.delivery for letter in letters])
            await subscription.flush()
        if refused is not None:
            raise refused
    returned.left = await _look(subscription)
    return returned


async def _look(subscription: Subscription) -> Waiting:
    lag = await subscription.lag()
    # At least one, where none is ours: of a topic that is not there nobody knows how many it has.
    shards = await subscription.shard_count() if lag else 1
    return Waiting(sum(lag.values()), max(0, shards - len(lag)))


@dataclass(frozen=True, slots=True)
class _Letter:
    """``strange``: why it is parked where it belongs by its topic alone."""

    delivery: Delivery
    id: KeyId
    message: Message
    shard: str
    position: int | None
    strange: str | None = None


def _read(deliveries: Sequence[Delivery], home: tuple[str, str] | None) -> tuple[list[_Letter], RefusedError | None]:
    """Where each belongs, up to the first one of which that is not known."""
    letters: list[_Letter] = []
    for delivery in deliveries:
        try:
            letter = _Letter(delivery, *original(delivery))
            problem = None if home in (None, (letter.id.consumer, letter.id.topic)) else "it is of another topic"
        except RefusedError as error:
            if home is None:
                return letters, error
            problem = delivery.malformed or str(error)
        if problem is not None and home is not None:
            letter = _strange(delivery, home, problem)
        letters.append(letter)
    return letters, None


def _strange(delivery: Delivery, home: tuple[str, str], problem: str) -> _Letter:
    consumer, topic = home
    message = msgspec.structs.replace(delivery.message, topic=topic)
    id = key_id("consumer", consumer, message)
    return _Letter(delivery, id, message, delivery.shard, None, clean(f"not a dead letter of Relevo: {problem}"))


def _back(letters: Sequence[_Letter], operator: Operator, returned: Returned, discarded: bool) -> Script[None]:
    fates: Counter[str] = Counter()
    ids = []
    for letter in letters:
        fate = yield from _one(letter, discarded)
        fates[fate] += 1
        if fate not in ("known", "given up"):
            ids.append(str(letter.message.event_id))
    if ids:
        act = Act("parked.from-dlq", operator.actor, operator.reason, {"topic": letters[0].delivery.message.topic})
        yield from auditing.record(act, len(ids), detail={"event_ids": ids})
    returned.queued += fates["queued"]
    returned.redriven += fates["redriven"]
    returned.strange += fates["strange"]
    returned.known += fates["known"]
    returned.given_up += fates["given up"]


def _one(letter: _Letter, discarded: bool) -> Script[str]:
    id, message = letter.id, letter.message
    if letter.strange is None:
        places = yield from parking.of_event(message.event_id)
        if any((place.consumer, place.topic, place.key) == (id.consumer, id.topic, id.key) for place, _ in places):
            yield from parking.free(id)  # the letter was a copy; what it is a copy of still stands in its key's queue
            return "redriven"
        if not discarded and (yield from inboxing.find(id.consumer, message.event_id)) == "discarded":
            return "given up"
        yield from inboxing.forget_given_up(id.consumer, message.event_id)
    why = Why("back from dead letters") if letter.strange is None else Why(letter.strange, "Malformed")
    fate = yield from holding.hold(
        id, message, letter.shard, letter.position, state="parked", why=why, attempts=0, delay_s=None
    )
    if letter.strange is not None:
        return "known" if fate == "done" else "strange"
    if fate == "held":
        yield from parking.free(id)
    return "known" if fate == "done" else "queued"
