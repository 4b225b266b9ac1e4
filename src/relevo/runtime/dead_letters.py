"""Dead letters as messages: the original bytes, key and headers, with the causes and the way back beside them."""

from __future__ import annotations

from typing import Final

import msgspec

from relevo.errors import RefusedError
from relevo.message import Message
from relevo.outcome import PublishOutcome, Rejected, Unavailable
from relevo.ports.broker import Broker, Delivery
from relevo.runtime.texts import clean
from relevo.storage.holding import STATE_KEY_MAX, KeyId, Why

CAUSE_BYTES_MAX: Final = 1000
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
READER: Final = "relevo-from-dlq"


def dlq_topic(consumer: str, topic: str) -> str:
    """Where the dead letters of one consumer and topic live."""
    return f"{consumer}.{topic}.dlq"


def reader_of(letters: str, broker: Broker) -> str:
    """The group as which the dead letters of one topic are read back. One for each: on PostgreSQL a group has one place
    for all of its topics, and what it does not read is behind it for good. Without history the messages are in queues,
    which are of one topic anyway."""
    return f"{READER}.{letters}" if broker.capabilities.keeps_history else READER


def dead_letter(id: KeyId, message: Message, *, position: int | None, shard: str, why: Why, attempts: int) -> Message:
    """The message for the dead-letter topic: as it was, with the causes beside. ``position``: ``None`` where the broker
    has none."""
    headers = {
        **message.headers,
        "relevo-cause": clean(why.reason, CAUSE_BYTES_MAX),
        "relevo-attempts": str(attempts),
        CONSUMER: id.consumer,
        TOPIC: id.topic,
        KEY: id.key.hex(),
        ALONE: "1" if id.alone else "0",
        POSITION: "" if position is None else str(position),
        SHARD: shard,
    }
    if why.error_type:
        headers["relevo-error-group"] = clean(why.error_type, CAUSE_BYTES_MAX)
    return msgspec.structs.replace(message, topic=dlq_topic(id.consumer, id.topic), headers=headers)


def original(delivery: Delivery) -> tuple[KeyId, Message, str, int | None]:
    """Key, message, shard and position as they were before it became a dead letter. Raises ``RefusedError`` for a
    message that Relevo did not put there."""
    letter = delivery.message
    headers = letter.headers
    try:
        id = KeyId("consumer", headers[CONSUMER], headers[TOPIC], bytes.fromhex(headers[KEY]), headers[ALONE] == "1")
        shard, position = headers[SHARD], int(headers[POSITION]) if headers[POSITION] else None
        if delivery.malformed is not None or len(id.key) > STATE_KEY_MAX or not _fits(position):
            raise ValueError(POSITION)
    except (KeyError, ValueError):
        raise RefusedError(
            f"message {letter.event_id} of {letter.topic} (shard {delivery.shard}, position {delivery.position}) was "
            "not put there by Relevo: nothing is known of where it belongs"
        ) from None
    kept = {name: value for name, value in headers.items() if name not in OURS}
    return id, msgspec.structs.replace(letter, topic=id.topic, headers=kept), shard, position


def _fits(position: int | None) -> bool:
    return position is None or -(2**63) <= position < 2**63


async def ensure(broker: Broker, topic: str) -> None:
    """Create the dead-letter topic if it is missing; at a broker without history, also what keeps its messages until
    they are read back. Raises as the broker does."""
    await broker.ensure_topics([topic])
    if not broker.capabilities.keeps_history:
        await (await broker.subscribe(reader_of(topic, broker), [topic])).aclose()


def said(outcome: PublishOutcome) -> str:
    """Why it was not accepted, in a few words."""
    match outcome:
        case Rejected(code, reason):
            return f"the broker refused it ({code}: {reason})"
        case Unavailable(reason):
            return f"the broker is unavailable ({reason})"
    return "the broker did not confirm it"
