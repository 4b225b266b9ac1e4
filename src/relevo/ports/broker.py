"""The broker port: a publisher for the relay, a subscription for the consumer. One conformance suite defines correct:
``relevo.testing.BrokerConformance``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import msgspec

from relevo.message import Message
from relevo.outcome import PublishOutcome
from relevo.outgoing import Sendable
from relevo.ports.database import Database

SEND_TIMEOUT_S: Final = 5.0
"""What ``relay.send_timeout_s`` is unless set."""


class BrokerCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker can do, as data. Code and docs read it; nobody asks for a broker's name."""

    prefix_safe: bool
    """If one message of a key is not accepted, none of that key handed over after it is. Where this is false the relay
    keeps one unconfirmed message per key."""
    ordered_by_key: bool
    keeps_history: bool
    """Positions can be read again after they were settled, and a group that is new finds what was sent before it. Where
    this is false a message is kept for the groups there were when it was sent, and one that nobody waits for is
    rejected as ``unroutable``."""
    settles_each: bool
    """Each message is settled by itself. Where this is false a contiguous prefix is, and what was settled behind an
    unsettled message comes again with it."""
    message_bytes_max: int | None
    """The broker's own default limit for payload, key and headers; ``None`` where it is the topic's."""
    across_machines: bool


class Publisher(Protocol):
    """Hands messages to one broker.

    Used by one relay, from one event loop; ``publish`` may be called again while an earlier call is under way, and
    messages of a later call never overtake those of an earlier one within their key. Nothing is stored here: what was
    not confirmed is unconfirmed.
    """

    @property
    def capabilities(self) -> BrokerCapabilities: ...

    async def publish(self, messages: Sequence[Sendable]) -> Mapping[int, PublishOutcome]:
        """Hand over ``messages`` in order and wait until each has an outcome.

        Returns the outcomes by index; **an index that is missing was accepted** (durably, as the broker defines it), so
        that a batch that went well costs no object per message. Order per (topic, key) is the order given, and the call
        is prefix-safe if the capability says so: then an index is never accepted when an earlier one of the same topic
        and key was not. Never raises for a message or an outage, only for misuse; cancellation makes what was under way
        *unconfirmed*.
        """

    async def probe(self, topic: str) -> PublishOutcome:
        """Can this destination take messages now? ``Accepted``, ``Unavailable``, or ``Rejected`` (no such topic, not
        authorised). Sends no message. At most a few seconds. Where a new topic is not known to all of the broker at
        once, a missing one is ``Unavailable`` for some seconds, here and in ``publish``, before it is ``Rejected``."""

    async def aclose(self) -> None:
        """Wait a bounded time for what is under way, then let go. Idempotent."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it arrived at one consumer. ``shard`` and ``position`` say where it stood: the order within a key
    is the order of positions, and so is that within a shard, but that a broker may deliver late what could not be seen
    before. Where the broker keeps no history, the process counts them: they say nothing in another one.
    ``generation`` changes when the shard is assigned anew; a stale one can no longer settle."""

    message: Message
    shard: str
    position: int
    generation: int
    redelivered: bool | None = None
    """``None`` where the broker does not tell."""
    malformed: str | None = None
    """Why the broker's own framing could not be read, if so; the bytes are in ``message.payload``."""


Revoked = Callable[[Sequence[str]], Awaitable[None]]
"""Awaited with the names of shards that are about to be taken away."""


class Subscription(Protocol):
    """Messages of some topics for one named consumer. Used by one process, from one event loop.

    Delivery is at least once. Messages of a key come in order, and a redelivery starts at an unsettled one and repeats
    what came after it.
    """

    async def take(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        """Up to ``max_messages`` deliveries, fewer or none after ``timeout_s``; never waits for a full batch.

        Raises ``UnreachableError`` when the broker does not answer, ``ConfigError`` for an unknown topic; the caller
        may call again after either.
        """

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """These are done. Any order, soon but not at once; a log commits the contiguous prefix of each shard.
        Deliveries of a shard that was taken away are ignored: its new owner goes on from what was settled."""

    async def flush(self) -> None:
        """Make what was settled durable at the broker now."""

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        """These were not worked on; they come again, here or elsewhere, soon."""

    def pause(self) -> None:
        """Fetch no more until ``resume``, without losing shards. Back-pressure."""

    def resume(self) -> None: ...

    def owns(self, delivery: Delivery) -> bool:
        """Whether ``settle`` would still count for it."""

    def on_revoke(self, callback: Revoked) -> None:
        """Call and await ``callback`` with the shards about to be taken away, before they are: finish and settle what
        is in flight there. Bounded by the broker's own rebalance time-out."""

    async def lag(self) -> Mapping[str, int]:
        """Messages not yet settled, by shard, for the shards owned now: a member that just joined, or whose neighbours
        died, may not own all yet. What is on its way here counts."""

    async def shard_count(self) -> int:
        """How many shards its topics have, whoever owns them. Raises ``UnreachableError``."""

    async def aclose(self) -> None:
        """Commit what is settled and leave the group, so that others take over at once. Idempotent."""


@runtime_checkable
class Notices(Protocol):
    """What a subscription offers beside ``Subscription`` if its broker can lose messages before they are read."""

    @property
    def notices(self) -> Sequence[str]:
        """Its last warnings about positions that are gone or began again."""


@runtime_checkable
class KeepsPlace(Protocol):
    """What a subscription offers beside ``Subscription`` if it renews its membership and stores positions by itself."""

    @property
    def problem(self) -> str | None:
        """Why it cannot do that now; ``None``: it can. The process is not ready while it cannot."""


class Broker(Protocol):
    """A broker by its URL. Construction connects to nothing."""

    @property
    def capabilities(self) -> BrokerCapabilities: ...

    @property
    def url(self) -> str:
        """For messages: without credentials."""

    async def publisher(self, *, source: str, send_timeout_s: float = SEND_TIMEOUT_S) -> Publisher:
        """A publisher; ``source`` is the CloudEvents source of what it sends. With no word from the broker for
        ``send_timeout_s`` seconds, what is under way is taken back: *unconfirmed* or *unavailable*."""

    async def subscribe(
        self, consumer: str, topics: Sequence[str], *, from_start: bool = True, commands: bool = True
    ) -> Subscription:
        """Join the group ``consumer`` on ``topics``. A new group begins at the oldest message unless ``from_start`` is
        false; where the broker keeps no history, it begins now either way. ``commands``: whether it has a
        handler for commands; a broker with queues sends it none otherwise, a log delivers all there is."""

    async def ensure_topics(self, topics: Sequence[str]) -> Sequence[str]:
        """Create the topics that are missing, for development, demo and tests; returns those created."""

    async def check(self) -> None:
        """Raise ``UnreachableError`` or ``ConfigError`` in plain words if this broker cannot be used."""


@runtime_checkable
class KeptInOutbox(Protocol):
    """What a broker offers beside ``Broker`` if what it keeps are the rows of an outbox."""

    async def is_outbox_of(self, database: Database) -> bool:
        """Whether that outbox is the one in ``database``, by what the server says: then there is nothing to relay, and
        what was published would come back. Raises ``UnreachableError``, ``ConfigError``."""
