"""Names, bindings and declarations: how a message finds the queue of its key. docs/decisions/0004 says why so.

Per topic: a topic exchange of its name for events, and a direct exchange ``{topic}:commands``. The publisher hashes a
key into one of 64 slots and puts it first in the routing key. Per consumer and topic: N quorum queues, each bound to
the slots s with s mod N = its number. All this works on a stock server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from relevo.brokers.murmur2 import partition_of
from relevo.brokers.rabbitmq.options import SLOTS, RabbitOptions
from relevo.clients.aio_pika import aiormq
from relevo.errors import ConfigError

TOPIC_MAX: Final = 118
CONSUMER_MAX: Final = 110
QUEUE_MAX: Final = 240
"""Characters. Exchanges may have 127, queues 255, and ours have something before and behind."""
UNLIMITED: Final = 1_000_000_000
"""``x-delivery-limit``: attempts are Relevo's to count, and RabbitMQ 4 drops a message after 20 deliveries unless told
otherwise. The same number on every version, since redeclaring with another one is refused; -1 is not known to 3.x."""


def slot_of(key: bytes) -> int:
    return partition_of(key, SLOTS)


def routing_key(slot: int, type_name: str) -> str:
    """Of an event. A type may have 200 characters, a routing key 255."""
    return f"s{slot:02d}.{type_name}"


def command_key(slot: int) -> str:
    return f"s{slot:02d}"


def commands_of(topic: str) -> str:
    """The direct exchange of a topic's commands. No topic can have this name: ``:`` is not allowed in one."""
    return f"{topic}:commands"


def queue_name(consumer: str, topic: str, number: int) -> str:
    return f"{consumer}:{topic}:{number}"


def meta_name(consumer: str, topic: str) -> str:
    """A queue that is never used: its arguments remember N, since a server compares those when it is declared again."""
    return f"relevo.meta:{consumer}:{topic}"


def prefetch_name(consumer: str, topic: str) -> str:
    """Likewise, for the prefetch."""
    return f"relevo.prefetch:{consumer}:{topic}"


def shard_name(topic: str, number: int) -> str:
    return f"{topic}/{number}"


def too_long(topic: str) -> str | None:
    """Why this cannot be a topic here, although it can elsewhere."""
    if len(topic) <= TOPIC_MAX:
        return None
    return f"RabbitMQ: the topic {topic!r} has {len(topic)} characters, and {TOPIC_MAX} are possible"


async def exists(connection: Any, topic: str) -> bool:
    """Whether the topic's exchange is there. A look costs a channel when it is not."""
    if too_long(topic):
        return False
    channel = await connection.channel(publisher_confirms=False)
    try:
        await channel.exchange_declare(topic, passive=True)
    except aiormq().exceptions.ChannelNotFoundEntity:
        return False
    await channel.close()
    return True


async def declare_topic(connection: Any, topic: str) -> None:
    if problem := too_long(topic):
        raise ConfigError(problem)
    channel = await connection.channel(publisher_confirms=False)
    try:
        await channel.exchange_declare(topic, exchange_type="topic", durable=True)
        await channel.exchange_declare(commands_of(topic), exchange_type="direct", durable=True)
    except aiormq().exceptions.ChannelPreconditionFailed:
        raise ConfigError(
            f"an exchange {topic!r} is there already and is of another kind: Relevo needs a durable topic exchange. "
            "Rename the topic, or delete that exchange"
        ) from None
    await channel.close()


async def declare_queues(connection: Any, consumer: str, topic: str, options: RabbitOptions, commands: bool) -> None:
    """The consumer's queues on ``topic``, and their bindings. Raises ``ConfigError`` when they are there otherwise."""
    errors = aiormq().exceptions
    if len(consumer) > CONSUMER_MAX or len(consumer) + len(topic) > QUEUE_MAX - len(meta_name("", "")):
        raise ConfigError(
            f"RabbitMQ: the consumer {consumer!r} and the topic {topic!r} are too long for the name of a queue; a "
            f"consumer may have {CONSUMER_MAX} characters"
        )
    count = options.queues
    channel = await connection.channel(publisher_confirms=False)
    try:
        await channel.queue_declare(meta_name(consumer, topic), durable=True, arguments={"x-max-length": count})
    except errors.ChannelPreconditionFailed:
        found = await count_queues(connection, consumer, topic)
        raise ConfigError(
            f"consumer {consumer!r} has {found} queues on topic {topic!r}, and broker.options.queues says {count}: "
            f"with another number, messages of a key would overtake each other. Set queues = {found}, or let the "
            "queues run empty with the relay stopped, delete them, and begin anew"
        ) from None
    await _declare_prefetch(channel, consumer, topic, options.prefetch)
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-single-active-consumer": True,
        "x-delivery-limit": UNLIMITED,
        # A length set by a policy must never drop the oldest messages, which is the default.
        "x-overflow": "reject-publish",
    }
    if options.queue_length_max:
        arguments["x-max-length"] = options.queue_length_max
    try:
        for number in range(count):
            await channel.queue_declare(queue_name(consumer, topic, number), durable=True, arguments=arguments)
    except errors.ChannelPreconditionFailed:
        raise ConfigError(
            f"a queue of consumer {consumer!r} on topic {topic!r} was declared with other arguments: as "
            "broker.options.queue_length_max was then, or not by Relevo. Restore that, or delete the queue when empty"
        ) from None
    for slot in range(SLOTS):
        queue = queue_name(consumer, topic, slot % count)
        await channel.queue_bind(queue, topic, f"s{slot:02d}.#")
        if commands:
            await channel.queue_bind(queue, commands_of(topic), command_key(slot))
    await channel.close()


async def _declare_prefetch(channel: Any, consumer: str, topic: str, prefetch: int) -> None:
    """All members of a consumer, now and later, have as many messages in hand. A server puts what is returned behind
    what was returned before: if the next member took only a part of it and then returned that, the rest would go first.
    With one prefetch the next one takes all that was returned, at once and in order."""
    name = prefetch_name(consumer, topic)
    try:
        await channel.queue_declare(name, durable=True, arguments={"x-max-length": prefetch})
    except aiormq().exceptions.ChannelPreconditionFailed as error:
        raise ConfigError(
            f"consumer {consumer!r} on topic {topic!r} began with another prefetch than {prefetch}, which "
            f"broker.options.prefetch says now: messages returned by one member and taken in part by another come out "
            f"of order. RabbitMQ says: {error}. Set it as it was, or see 'Another prefetch' in docs/how-to/"
            "use-rabbitmq.md"
        ) from None


async def count_queues(connection: Any, consumer: str, topic: str) -> int:
    """How many queues the consumer really has."""
    for number in range(SLOTS):
        channel = await connection.channel(publisher_confirms=False)
        try:
            await channel.queue_declare(queue_name(consumer, topic, number), passive=True)
        except aiormq().exceptions.ChannelNotFoundEntity:
            return number
        await channel.close()
    return SLOTS


def shards(topics: Sequence[str], count: int) -> list[tuple[str, int]]:
    return [(topic, number) for topic in sorted(topics) for number in range(count)]
