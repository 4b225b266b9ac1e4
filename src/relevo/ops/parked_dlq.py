"""Dead letters, for teams whose tools live there: parked messages to ``{consumer}.{topic}.dlq``, and back.

Bytes, key and headers are as they were, causes stand beside them as headers. A message leaves its queue only after the
broker confirmed it, in one transaction with its inbox row (discarded) and the audit; killed in between, it is published
again. What comes back is queued behind what is held of its key, or drains at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from relevo.errors import MisuseError, RefusedError
from relevo.message import Message
from relevo.ops.parked import Operator, Tally, count, described
from relevo.outcome import PublishOutcome, Rejected, Unavailable
from relevo.ports.broker import Delivery, Publisher, Subscription
from relevo.ports.database import Database
from relevo.relay.sending import send
from relevo.runtime.probes import probe
from relevo.runtime.texts import clean
from relevo.script import Script
from relevo.storage import auditing, holding, inboxing, parking
from relevo.storage.auditing import Act
from relevo.storage.holding import KeyId, Why
from relevo.storage.parking import Acted, Done, HeldKey, Queued, Selection, readable

BATCH = 200
CAUSE_BYTES_MAX = 1000
CONSUMER, TOPIC, KEY, ALONE, POSITION, SHARD = (
    "relevo-consumer",
    "relevo-original-topic",
    "relevo-held-key",
    "relevo-alone",
    "relevo-position",
    "relevo-shard",
)
CAUSES = ("relevo-cause", "relevo-error-group", "relevo-attempts")
OURS = frozenset((CONSUMER, TOPIC, KEY, ALONE, POSITION, SHARD, *CAUSES))


def dlq_topic(consumer: str, topic: str) -> str:
    """Where the dead letters of one consumer and topic live."""
    return f"{consumer}.{topic}.dlq"


@dataclass(slots=True)
class Published(Tally):
    """``problems``: keys that stay parked with what was not taken, and why."""

    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Returned:
    """``queued`` for their keys; ``known``: already processed, so left alone."""

    queued: int = 0
    known: int = 0


def check_side(selection: Selection) -> Selection:
    """The selection, bound to the consumer's side: what a broker refused cannot be given to it as a dead letter."""
    if selection.side == "relay":
        raise MisuseError(
            "dead letters are for the consumer's side: what is parked on the relay's side was refused by the broker"
        )
    return replace(selection, side="consumer")


async def topics_of(database: Database, selection: Selection) -> list[str]:
    """The dead-letter topics that ``publish`` of this selection would write to."""
    found: set[str] = set()
    after: Mapping[str, Any] = {}
    while True:
        keys = await database.run(parking.page(selection, state="parked", after=after, limit=500), read_only=True)
        found.update(dlq_topic(key.id.consumer, key.id.topic) for key in keys)
        if len(keys) < 500:
            return sorted(found)
        after = keys[-1].place


async def publish(
    database: Database,
    publisher: Publisher,
    selection: Selection,
    operator: Operator,
    *,
    report: Callable[[Tally, int | None], None] = lambda tally, total: None,
) -> Published:
    """Move every message of every parked key of ``selection`` to its dead-letter topic, in order."""
    total = (await count(database, selection)).keys
    tally, after = Published(), dict[str, Any]()
    act = Act("parked.publish", operator.actor, operator.reason, selection.document())
    while keys := await database.run(parking.page(selection, state="parked", after=after, limit=100), read_only=True):
        for key in keys:
            problem = await _publish_key(database, publisher, key, act, tally)
            if problem is not None:
                tally.problems.append(f"key {readable(key.id.key)!r} of {key.id.topic}: {problem}")
        after = keys[-1].place
        report(tally, total)
    return tally


async def _publish_key(
    database: Database, publisher: Publisher, key: HeldKey, act: Act, tally: Published
) -> str | None:
    """``None`` when the key is live afterwards, else why it is not."""
    epoch = await database.run(parking.epoch(key.id))
    if not isinstance(epoch, int):
        tally.busy += 1
        return "it is not parked any more"
    while True:
        queue = await database.run(parking.queue(key.id, limit=BATCH), read_only=True)
        outcomes = await send(publisher, [dead_letter(key, queued) for queued in queue])
        probe("parked.published")
        taken = queue[: min(outcomes)] if outcomes else queue
        done = await database.run(_gone(key.id, epoch, taken, act))
        if not isinstance(done, Acted):
            return "somebody else changed it meanwhile; what was published may come twice"
        tally.messages += done.messages
        if done.live:
            tally.keys += 1
            return None
        if outcomes:
            return _why(outcomes[min(outcomes)])


def _gone(id: KeyId, epoch: int, taken: Sequence[Queued], act: Act) -> Script[Done]:
    done = yield from parking.drop_some(id, epoch, [queued.held_seq for queued in taken])
    if isinstance(done, Acted) and done.messages:
        ids = [str(queued.message.event_id) for queued in taken]
        yield from auditing.record(act, done.messages, detail={**described(id), "event_ids": ids})
    return done


def dead_letter(key: HeldKey, queued: Queued) -> Message:
    """The message for the dead-letter topic: as it was, with the causes beside."""
    id = key.id
    headers = {
        **queued.message.headers,
        "relevo-cause": clean(key.reason, CAUSE_BYTES_MAX),
        "relevo-attempts": str(key.attempts),
        CONSUMER: id.consumer,
        TOPIC: id.topic,
        KEY: id.key.hex(),
        ALONE: "1" if id.alone else "0",
        POSITION: str(queued.position),
        SHARD: queued.shard,
    }
    if key.error_type:
        headers["relevo-error-group"] = clean(key.error_type, CAUSE_BYTES_MAX)
    return msgspec.structs.replace(queued.message, topic=dlq_topic(id.consumer, id.topic), headers=headers)


async def waiting(subscription: Subscription, *, wait_s: float) -> int:
    """Messages in the dead-letter topic that nobody brought back yet; waits for the broker to assign its shards."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        lag = await subscription.lag()
        if lag or asyncio.get_running_loop().time() > deadline:
            return sum(lag.values())
        taken = await subscription.take(1, 0.2)
        if taken:
            await subscription.hand_back(taken)


async def bring_back(database: Database, subscription: Subscription, operator: Operator, *, wait_s: float) -> Returned:
    """Queue everything that stands in the dead-letter topic for its key again, and settle it there.

    Raises ``RefusedError`` at a message that Relevo did not put there; what came before it is brought back.
    """
    returned = Returned()
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        deliveries = await subscription.take(BATCH, 1.0)
        if not deliveries:
            lag = await subscription.lag()
            if (lag and not sum(lag.values())) or asyncio.get_running_loop().time() > deadline:
                return returned
            continue
        deadline = asyncio.get_running_loop().time() + wait_s
        letters = [(delivery, original(delivery)) for delivery in deliveries]
        await database.run(_back(letters, operator, returned))
        probe("parked.brought_back")
        await subscription.settle(deliveries)
        await subscription.flush()


def original(delivery: Delivery) -> tuple[KeyId, Message, str, int]:
    """Key, message, shard and position as they were before it became a dead letter."""
    letter = delivery.message
    headers = letter.headers
    try:
        id = KeyId("consumer", headers[CONSUMER], headers[TOPIC], bytes.fromhex(headers[KEY]), headers[ALONE] == "1")
        shard, position = headers[SHARD], int(headers[POSITION])
    except (KeyError, ValueError):
        raise RefusedError(
            f"message {letter.event_id} of {letter.topic} (shard {delivery.shard}, position {delivery.position}) was "
            "not put there by `relevo parked publish`: nothing is known of where it belongs"
        ) from None
    kept = {name: value for name, value in headers.items() if name not in OURS}
    return id, msgspec.structs.replace(letter, topic=id.topic, headers=kept), shard, position


def _back(
    letters: Sequence[tuple[Delivery, tuple[KeyId, Message, str, int]]], operator: Operator, returned: Returned
) -> Script[None]:
    queued, ids = 0, []
    for _, (id, message, shard, position) in letters:
        yield from inboxing.forget_discarded(id.consumer, message.event_id)
        why = Why("back from dead letters")
        fate = yield from holding.hold(id, message, shard, position, state="parked", why=why, attempts=0, delay_s=None)
        if fate == "held":
            yield from parking.free(id)
        queued += fate != "done"
        if fate != "done":
            ids.append(str(message.event_id))
    if ids:
        act = Act("parked.from-dlq", operator.actor, operator.reason, {"topic": letters[0][0].message.topic})
        yield from auditing.record(act, queued, detail={"event_ids": ids})
    returned.queued += queued
    returned.known += len(letters) - queued


def _why(outcome: PublishOutcome) -> str:
    match outcome:
        case Rejected(code, reason):
            return f"the broker refused it ({code}: {reason})"
        case Unavailable(reason):
            return f"the broker is unavailable ({reason})"
    return "the broker did not confirm it"
