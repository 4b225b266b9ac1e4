"""``[broker.options]`` of Kafka: a few of ours, and librdkafka's own names passed on as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from relevo.bounds import ANSWER_S
from relevo.brokers.given import refuse_moved
from relevo.errors import ConfigError
from relevo.settings import redact

Config = dict[str, Any]


class OwnOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Relevo's own. Durations in seconds."""

    partitions: int = 4
    """Of topics that ``ensure_topics`` makes (development, demo, tests)."""
    replication: int = -1
    """Likewise; -1 is the cluster's default."""
    buffer_messages: int = 5_000
    """A subscription holds at most about so many messages that were not taken yet …"""
    buffer_bytes: int = 32_000_000
    """… and so many bytes of them, before it pauses its partitions."""


_ALL = {"all", "-1"}
_OURS = "is set by Relevo"
_REFUSED: Final[Mapping[str, str]] = {
    "bootstrap.servers": "comes from broker.url",
    "metadata.broker.list": "comes from broker.url",
    "group.id": "is the consumer's name",
    "partitioner": "stays murmur2_random, where Java clients put a key: another one would tear keys apart",
    "auto.offset.reset": "would skip or repeat messages of a known group; say where a new group begins with from_start",
    "transactional.id": "has no use here: the relay's transaction is the database's",
    "enable.gapless.guarantee": "stays on: without it later messages of a key pass one that the broker refused",
    "retries": "stays unlimited: a send that gives up lets later messages pass",
    "message.send.max.retries": "stays unlimited: a send that gives up lets later messages pass",
    "delivery.report.only.error": "would leave the relay without confirmations",
    "dr_cb": _OURS,
    "error_cb": _OURS,
    "on_commit": _OURS,
    "logger": _OURS,
}
_FIXED: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "enable.idempotence": (frozenset({"true", "1"}), "retries would swap and repeat messages within a key"),
    "acks": (frozenset(_ALL), "a message could be lost after it was confirmed"),
    "request.required.acks": (frozenset(_ALL), "a message could be lost after it was confirmed"),
    "message.timeout.ms": (frozenset({"0"}), "a send that gives up by itself lets later messages of its key pass"),
    "delivery.timeout.ms": (frozenset({"0"}), "a send that gives up by itself lets later messages of its key pass"),
    "enable.auto.commit": (frozenset({"false", "0"}), "messages would be acknowledged before they are handled"),
    "enable.auto.offset.store": (frozenset({"false", "0"}), "messages would be acknowledged before they are handled"),
}

_IN_FLIGHT: Final = {"max.in.flight", "max.in.flight.requests.per.connection"}
_IN_FLIGHT_MAX: Final = 5
"""So many batches of a producer a broker keeps in order."""

PROMPT_MS: Final = 0
"""Linger while a relay follows: with half a millisecond the median at 1,000 events/s was a third longer."""
PATIENT_MS: Final = 20
"""Linger in a backlog: half of the broker's CPU for a message at the same rate (docs/explanation/performance.md)."""
SESSION_MS: Final = 15_000
"""A member learns only after this time that its coordinator hangs; the client's default is 45 s. As long as the default
lease of a consumer. The client's own thread sends heartbeats, so a busy process does not lose its session."""
_LINGERS: Final = ("linger.ms", "queue.buffering.max.ms")

_PRODUCER_ONLY = (
    *("linger.ms", "queue.buffering.", "compression.", "batch.", "sticky.partitioning.", "enable.idempotence", "acks"),
    *("request.required.acks", "request.timeout.ms", "message.timeout.ms", "delivery.timeout.ms", "max.in.flight"),
)
_CONSUMER_ONLY = (
    *("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "group.", "coordinator.query."),
    *("partition.assignment.strategy", "fetch.", "queued.", "isolation.level", "check.crcs", "enable.auto."),
    *("enable.partition.eof", "max.partition.fetch.bytes"),
)


@dataclass(frozen=True, repr=False)
class KafkaOptions:
    """What the clients are made with. No ``repr``: there are passwords in it."""

    own: OwnOptions
    servers: str
    passed: Mapping[str, Any]

    @property
    def lingers_adaptively(self) -> bool:
        """Whether Relevo chooses how long a producer waits for company; not if a user has."""
        return not any(name in self.passed for name in _LINGERS)

    def producer(self, batch_bytes_max: int, *, patient: bool = False) -> Config:
        """``batch_bytes_max``: half of the smallest limit of the topics in use, so that no batch exceeds it."""
        chosen = self._for(_CONSUMER_ONLY)
        batch_bytes = min(int(chosen.pop("batch.size", batch_bytes_max)), batch_bytes_max)
        return {
            **self._common(),
            **({"linger.ms": PATIENT_MS if patient else PROMPT_MS} if self.lingers_adaptively else {}),
            "queue.buffering.max.messages": 100_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            # The topic's own limit is checked before; this one only bounds a request.
            "message.max.bytes": 100_000_000,
            # A request goes to one partition, so one at a time would be as slow as the partitions are many.
            "max.in.flight.requests.per.connection": _IN_FLIGHT_MAX,
            **chosen,
            "batch.size": batch_bytes,
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "acks": "all",
            "message.timeout.ms": 0,
            "partitioner": "murmur2_random",
        }

    def consumer(self, group: str) -> Config:
        # Members learn of a change with their next heartbeat: the client's default of 3 s makes hand-overs slow. With
        # the newer protocol (KIP-848) the broker decides both.
        classic = {
            "partition.assignment.strategy": "cooperative-sticky",
            "heartbeat.interval.ms": 1000,
            "session.timeout.ms": SESSION_MS,
        }
        return {
            **self._common(),
            **({} if self.passed.get("group.protocol") == "consumer" else classic),
            "queued.max.messages.kbytes": 16 * 1024,
            "topic.metadata.refresh.interval.ms": 30_000,
            **self._for(_PRODUCER_ONLY),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
        }

    def admin(self) -> Config:
        return {**self._common(), **self._for((*_PRODUCER_ONLY, *_CONSUMER_ONLY))}

    def _common(self) -> Config:
        return {
            "bootstrap.servers": self.servers,
            "client.id": "relevo",
            # librdkafka would wait up to 10 s before it tries again, long after the broker is back. It adds up to half.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 250,
            "socket.connection.setup.timeout.ms": 5000,
            "socket.timeout.ms": int(ANSWER_S * 1000),
            "socket.keepalive.enable": True,
            "allow.auto.create.topics": False,
            # Said by Relevo in its own words.
            "log.connection.close": False,
        }

    def _for(self, without: tuple[str, ...]) -> Config:
        return {name: value for name, value in self.passed.items() if not name.startswith(without)}


def parse(url: str, options: Mapping[str, Any]) -> KafkaOptions:
    """Options of ``kafka://host:port[,host:port]``; raises ``ConfigError`` for what would break a promise."""
    refuse_moved(options)
    servers = _servers(url)
    own = {name: value for name, value in options.items() if name in OwnOptions.__struct_fields__}
    try:
        parsed = msgspec.convert(own, OwnOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"broker.options: {error}") from None
    if parsed.partitions < 1 or parsed.buffer_messages < 1 or parsed.buffer_bytes < 1:
        raise ConfigError("broker.options: partitions, buffer_messages and buffer_bytes must be above 0")
    passed = {name: value for name, value in options.items() if name not in own}
    for name, value in passed.items():
        if name in _REFUSED:
            raise ConfigError(f"broker.options: {name!r} cannot be set: it {_REFUSED[name]}")
        if name in _FIXED and str(value).lower() not in _FIXED[name][0]:
            wanted, why = _FIXED[name]
            raise ConfigError(f"broker.options: {name!r} must stay {sorted(wanted)[-1]}: otherwise {why}")
        if name in _IN_FLIGHT and str(value) not in map(str, range(1, _IN_FLIGHT_MAX + 1)):
            raise ConfigError(
                f"broker.options: {name!r} must be 1 to {_IN_FLIGHT_MAX}: more would swap messages on a retry"
            )
    return KafkaOptions(parsed, servers, {name: value for name, value in passed.items() if name not in _FIXED})


def _servers(url: str) -> str:
    scheme, _, rest = url.partition("://")
    servers = rest.rstrip("/")
    if scheme != "kafka" or not servers or any(character in servers for character in "/?#"):
        raise ConfigError(f"broker.url {redact(url)!r}: use kafka://host:port or kafka://host:port,host:port")
    if "@" in servers:
        raise ConfigError(
            f"broker.url {redact(url)!r}: no user and password here; set 'security.protocol', 'sasl.mechanisms', "
            "'sasl.username' and 'sasl.password' in [broker.options]"
        )
    for server in servers.split(","):
        host, colon, port = server.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit():
            raise ConfigError(f"broker.url {url!r}: {server!r} is not host:port")
    return servers
