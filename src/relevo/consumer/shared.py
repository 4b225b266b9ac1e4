"""What the parts of one running consumer share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import UUID

from relevo.bounds import handler_idle_s
from relevo.consumer.availability import Availability
from relevo.consumer.gate import Gate
from relevo.consumer.handlers import Handler
from relevo.consumer.journal import Journal
from relevo.consumer.routing import Routes
from relevo.consumer.runs import Runs
from relevo.message import Message
from relevo.outcome import RejectAsked
from relevo.policy import Policy
from relevo.ports.broker import Delivery
from relevo.runtime.pulse import Pulse
from relevo.runtime.texts import clean, headline
from relevo.settings import ConsumerSettings
from relevo.storage.holding import KeyId, Why, key_id
from relevo.storage.inboxing import Bounds
from relevo.storage.pausing import NONE, Pauses
from relevo.wire import MALFORMED

CONFLICTS_MAX = 20
"""Serialization failures in a row before one counts as a failure: two messages that always collide must not spin."""


@dataclass(slots=True)
class Interrupt:
    """Wakes whoever sleeps before an inline retry, on a stop or when a shard is taken away."""

    stopping: bool = False
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def stir(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    def stop(self) -> None:
        self.stopping = True
        self.stir()

    async def sleep(self, seconds: float, unless: Callable[[], bool]) -> None:
        """Sleep; stop early on a stop, or when a stir finds that ``unless`` holds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self.stopping and not unless() and (left := end - loop.time()) > 0:
            event = self._event
            try:
                async with asyncio.timeout(left):
                    await event.wait()
            except TimeoutError:
                return


@dataclass(slots=True)
class Shared:
    """``owner``: this start of this consumer; journal rows and drain claims carry it."""

    name: str
    owner: UUID
    routes: Routes
    policy: Policy
    runs: Runs
    database: Availability
    journal: Journal
    gate: Gate
    interrupt: Interrupt
    drain_wanted: asyncio.Event
    lease_s: float
    topics: tuple[str, ...] = ()
    pauses: Pauses = NONE
    """What people paused, as it was up to a second ago."""
    commits: int = 0
    """Transactions with handlers that were committed."""
    counted: bool = False
    """Whether positions are counted by each process, since the broker has none: they say nothing elsewhere."""
    dead_letters: bool = False
    """Whether what is given up is also published to its dead-letter topic."""
    pulse: Pulse = field(default_factory=Pulse)
    """When each kind of its work last succeeded."""
    letters_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a dead letter was written."""
    bounds: Bounds = field(default_factory=Bounds)
    """Of handlers' transactions."""
    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """One look at a time at what may run elsewhere: many of them must not take the handlers' threads."""
    elsewhere: dict[UUID, float] = field(default_factory=dict)
    """Messages that another process runs just now, and since when (``time.monotonic``) they wait for it here."""

    @property
    def paused(self) -> bool:
        """Whether nothing is taken at all: this consumer is paused, or every topic it reads."""
        pauses = self.pauses
        return self.name in pauses.consumers or (bool(self.topics) and pauses.topics.issuperset(self.topics))

    def stopped(self, key: KeyId) -> bool:
        """Whether a person paused this key, its topic or this consumer."""
        return bool(self.pauses.all) and (
            self.name in self.pauses.consumers or self.pauses.stops(self.name, key.topic, key.key)
        )

    async def answers(self) -> bool:
        """Whether the database answers at once; one of ``Losses`` witnesses."""
        return await self.database.answers()

    async def writes(self) -> bool:
        """Whether it takes a small write at once."""
        return await self.database.writes(self.name)

    def down(self, reason: str) -> None:
        self.database.down(reason)

    def policy_of(self, handler: Handler | None) -> Policy:
        return self.policy if handler is None else handler.policy

    def position_of(self, delivery: Delivery) -> int | None:
        """Where it goes in a held key's queue; ``None``: at its end."""
        return None if self.counted else delivery.position

    def key_of(self, message: Message, handler: Handler | None) -> KeyId:
        return key_id("consumer", self.name, message, ordered=self.policy_of(handler).order == "key")


def bounds_of(settings: ConsumerSettings) -> Bounds:
    """Of handlers' transactions. A configured idle time-out has a statement of its own, which comes first."""
    configured = settings.handler_idle_timeout_s is not None
    return Bounds(idle_ms=0 if configured else int(handler_idle_s(settings.lease_s) * 1000))


def elsewhere(since: Mapping[UUID, float]) -> dict[str, Any]:
    """For ``/status``: messages that another process runs just now, and for how long the first of them waits here."""
    oldest = min(since.values(), default=None)
    return {"messages": len(since), "oldest_s": None if oldest is None else round(monotonic() - oldest, 3)}


def unhandled(message: Message, malformed: str | None) -> RejectAsked:
    """What is said of a message no handler is declared for: parked, neither skipped silently nor tried for ever."""
    malformed = malformed or message.headers.get(MALFORMED)
    if malformed is not None:
        return RejectAsked(clean(f"malformed: {malformed}"), "Malformed")
    if not message.type:
        return RejectAsked("the message has no type (no ce_type header), so no handler can be found", "NoType")
    return RejectAsked(
        clean(f"no handler for the type {message.type!r}: declare one, or name it in skip_types=[…]", 500), "NoHandler"
    )


def why(reason: str, outcome: object) -> Why:
    """What is stored with a held key."""
    error_type = getattr(outcome, "error_type", None) or None
    brief, error = headline(clean(reason)), getattr(outcome, "error", None)
    return Why(brief, error_type, clean(reason) if error is None and brief != clean(reason) else error)


def killer(attempts: int) -> RejectAsked:
    return RejectAsked(
        f"it killed its process {attempts} times: the process died each time this message ran, the last time alone",
        "ProcessDied",
    )
