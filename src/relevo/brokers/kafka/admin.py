"""What the cluster says about topics: whether they exist, may be used, and how large a message may be."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from relevo.brokers.kafka.options import KafkaOptions
from relevo.brokers.kafka.outcomes import classify
from relevo.clients.confluent import answer_of, confluent, make
from relevo.errors import ConfigError, UnreachableError
from relevo.outcome import PublishOutcome, Rejected, Unavailable

T = TypeVar("T")

KNOWN_FOR_S: Final = 60.0
AWAY_FOR_S: Final = 2.0
REFUSED_FOR_S: Final = 0.25
"""Who creates the topic and lets the parked messages go finds it known."""
_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
RULE: Final = "Kafka's names have 1 to 249 of the characters A-Z a-z 0-9 . _ -"
MISSING_S: Final = 5.0
"""A topic reaches every broker a moment after it was created, on a busy one more than a second. So long a missing one
is *unavailable*: rejected at once, the first events of a new topic would be parked. Then it does not exist."""
REQUEST_TIMEOUT_S: Final = 3.0
BATCH_OVERHEAD_BYTES: Final = 61
"""Of a record batch, format 2; the topic's limit counts it in."""
DEFAULT_LIMIT_BYTES: Final = 1_048_588
"""Kafka's ``message.max.bytes``, taken where we may not read the topic's configuration."""


@dataclass(frozen=True, slots=True)
class Topic:
    """``refused``: why nothing can be sent there. ``limit_bytes``: ``max.message.bytes``, of a whole record batch.
    ``partitions``: how many there are, 0 where it is not known."""

    refused: PublishOutcome | None
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    partitions: int = 0


class Topics:
    """Topics as the cluster described them, remembered for a minute. Used from one event loop."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._admin: Any = None
        self._known: dict[str, tuple[float, Topic]] = {}
        self._missing_since: dict[str, float] = {}

    async def get(self, names: Iterable[str]) -> dict[str, Topic]:
        """What is known of ``names``, asked for where it is not, or too old. When the cluster does not answer, older
        knowledge will do; without any the topic is *unavailable*."""
        now = time.monotonic()
        wanted = dict.fromkeys(names)
        stale = [name for name in wanted if name not in self._known or self._known[name][0] <= now]
        if stale:
            found = await asyncio.gather(*[self.ask(name) for name in stale])
            for name, topic in zip(stale, found, strict=True):
                old = self._known.get(name)
                if isinstance(topic.refused, Unavailable) and old is not None and old[1].refused is None:
                    topic = old[1]
                self.learn(name, topic)
        return {name: self._known[name][1] for name in wanted}

    def learn(self, name: str, topic: Topic) -> None:
        """Remember what ``ask`` found."""
        lasts_s = KNOWN_FOR_S
        if topic.refused is not None:
            lasts_s = REFUSED_FOR_S if isinstance(topic.refused, Rejected) else AWAY_FOR_S
        self._known[name] = (time.monotonic() + lasts_s, topic)

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    async def ask(self, name: str) -> Topic:
        """What the cluster says about ``name`` now. *Unavailable* where it has been missing for a moment only."""
        if _NAME.match(name) is None:  # the client raises for some of them, and cuts others
            return Topic(Rejected("unknown_topic", f"the topic {name!r} cannot exist: {RULE}"))
        found = await self._describe(name)
        if not (isinstance(found.refused, Rejected) and found.refused.code == "unknown_topic"):
            self._missing_since.pop(name, None)
            return found
        since = self._missing_since.setdefault(name, time.monotonic())
        if time.monotonic() - since >= MISSING_S:
            return found
        return Topic(Unavailable(f"the topic {name!r} is not there; a new one may take a moment to be known"))

    async def _describe(self, name: str) -> Topic:
        module = confluent()
        collection = module.TopicCollection([name])
        described = await self._call(
            lambda admin: admin.describe_topics(collection, request_timeout=REQUEST_TIMEOUT_S)[name]
        )
        if isinstance(described, Exception):
            return Topic(_outcome(name, described))
        partitions = len(described.partitions)
        resource = module.admin.ConfigResource(module.admin.ConfigResource.Type.TOPIC, name)
        config = await self._call(
            lambda admin: admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
        )
        if isinstance(config, Exception):
            # Describing a topic and its configuration are two rights. Without the second the default is assumed, and a
            # message the broker refuses after all costs a restart of the producer.
            outcome = _outcome(name, config)
            return Topic(outcome if isinstance(outcome, Unavailable) else None, partitions=partitions)
        return Topic(None, int(config["max.message.bytes"].value), partitions)

    async def create(self, names: Sequence[str], partitions: int, replication: int) -> Sequence[str]:
        """Create those that are missing; returns them."""
        module = confluent()
        created = []
        for name in dict.fromkeys(names):
            new = module.admin.NewTopic(name, num_partitions=partitions, replication_factor=replication)

            def create(admin: Any, name: str = name, new: Any = new) -> Any:
                return admin.create_topics([new], request_timeout=10.0)[name]

            result = await self._call(create)
            if not isinstance(result, Exception):
                created.append(name)
            elif _error_name(result) != "TOPIC_ALREADY_EXISTS":
                raise _error(f"the topic {name!r} could not be created", result)
        await self._until_led(created)
        return created

    async def check(self) -> None:
        answer = await self._call(lambda admin: admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S))
        if isinstance(answer, Exception):
            raise _error(f"Kafka at {self._options.servers} does not answer", answer)

    async def _until_led(self, names: Sequence[str]) -> None:
        """A new topic is known to every broker a moment after it was created."""
        deadline = time.monotonic() + 10.0
        while names and time.monotonic() < deadline:
            found = await asyncio.gather(*[self.ask(name) for name in names])
            names = [name for name, topic in zip(names, found, strict=True) if topic.refused is not None]
            if names:
                await asyncio.sleep(0.05)

    async def _call(self, request: Callable[[Any], Any]) -> Any:
        """The answer, or the ``KafkaException`` as a value."""
        if self._admin is None:
            self._admin = make("AdminClient", self._options.admin())
        try:
            future: Awaitable[Any] = answer_of(self._admin, request(self._admin))
            async with asyncio.timeout(REQUEST_TIMEOUT_S + 10.0):
                return await future
        except confluent().KafkaException as error:
            return error
        except TimeoutError:
            return UnreachableError("Kafka did not answer")


def _outcome(topic: str, error: Exception) -> PublishOutcome:
    if isinstance(error, UnreachableError):
        return Unavailable(str(error))
    outcome = classify(_error_name(error), _reason(error))
    if isinstance(outcome, Rejected):
        if outcome.code == "unknown_topic":
            return Rejected(outcome.code, missing(topic))
        return outcome
    return Unavailable(f"{_error_name(error)}: {_reason(error)}")


def _error(what: str, error: Exception) -> Exception:
    if isinstance(error, UnreachableError):
        return UnreachableError(f"{what}: {error}")
    outcome = classify(_error_name(error), _reason(error))
    kind = UnreachableError if isinstance(outcome, Unavailable) else ConfigError
    return kind(f"{what}: {_error_name(error)}: {_reason(error)}")


def missing(topic: str) -> str:
    return (
        f"the topic {topic!r} does not exist. Create it with the partitions and retention it needs: "
        f"kafka-topics.sh --create --topic {topic} --partitions N"
    )


def _error_name(error: Exception) -> str:
    return str(error.args[0].name())


def _reason(error: Exception) -> str:
    return str(error.args[0].str())
