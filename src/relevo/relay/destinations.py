"""Destinations that are unavailable: paused one by one, probed beside the relay's loop, resumed by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from relevo.outcome import Accepted, Duplicate, PublishOutcome, Rejected, Unavailable
from relevo.policy import PROBE_BACKOFF, Backoff
from relevo.ports.broker import Publisher
from relevo.ports.database import Database
from relevo.runtime.clock import SYSTEM, Clock
from relevo.storage import destinations as scripts
from relevo.tasks import Kept, Tasks

log = logging.getLogger("relevo.relay")

AT_ONCE: Final = 8
"""Probes under way together, and started in one interval: a broker that is away with a thousand topics is asked no
oftener than one that is away with eight."""
RELAPSE_S: Final = 5.0
"""A destination that is unavailable again so soon answered the probe and refused the messages."""
RELAPSES: Final = Backoff(attempts=1, base=timedelta(milliseconds=200), cap=timedelta(seconds=5))
"""Such a one is tried ever more seldom: each try sends messages, and some of them may be stored twice."""


@dataclass
class Paused:
    """One paused destination. ``since``: wall clock, for people. ``due``: by the clock's seconds, when to probe next.
    ``relapses``: how often in a row it was paused again soon after a probe had succeeded."""

    topic: str
    reason: str
    since: datetime
    due: float
    blocked: bool = False
    """Paused by a rejected message under the policy ``block``: resumed by time, not by a probe."""
    relapses: int = 0


@dataclass
class Destinations:
    """The paused destinations of one relay. No attempt of any message is spent while its destination is paused.

    Used from one event loop. A task of its own probes while something is paused, so that a broker that accepts
    connections and never answers keeps nobody waiting. ``wake`` is called when one is resumed; ``untold`` are the
    topics whose state changed and whose row in the database does not say so yet.
    """

    publisher: Publisher
    wake: Callable[[], None] = lambda: None
    clock: Clock = SYSTEM
    backoff: Backoff = PROBE_BACKOFF
    paused: dict[str, Paused] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    probes: int = 0
    """Since the start."""
    _failures: int = 0
    _not_before: float = 0.0
    _lately: dict[str, tuple[float, Paused]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: Tasks = field(default_factory=lambda: Tasks("relay", log))
    _prober: Kept | None = None

    def topics(self) -> Set[str]:
        return self.paused.keys()

    def pause(self, topic: str, reason: str) -> None:
        """Take nothing for ``topic`` until a probe succeeds."""
        known = self.paused.get(topic)
        if known is not None:
            known.reason = reason
            return
        now = self.clock.seconds()
        entry = Paused(topic, reason, self.clock.wall(), now + self.backoff.delay_s(1))
        resumed_at, before = self._lately.pop(topic, (-RELAPSE_S, None))
        if before is not None and now - resumed_at < RELAPSE_S:
            entry.relapses, entry.since = before.relapses + 1, before.since
            entry.due = now + RELAPSES.delay_s(entry.relapses)
        log.log(
            logging.DEBUG if entry.relapses else logging.WARNING,
            "destination %s is unavailable (%s): paused, probing; its messages wait, none is spent",
            *(topic, reason),
        )
        self._add(entry)

    def block(self, topic: str, reason: str, delay_s: float) -> None:
        """Take nothing for ``topic`` for ``delay_s`` seconds: its first message is rejected and policy says to wait."""
        known = self.paused.get(topic)
        if known is None:
            log.error(
                "destination %s is blocked by a rejected message (%s): policy says block; trying again in %.0f s",
                *(topic, reason, delay_s),
            )
        since = self.clock.wall() if known is None else known.since
        self._add(Paused(topic, reason, since, self.clock.seconds() + delay_s, blocked=True))

    async def tell(self, database: Database, relay_id: UUID) -> None:
        """Write down what changed, so that ``status`` sees from any process what is paused in this one. Raises as the
        database does; what was not written stays ``untold``."""
        for topic in list(self.untold):
            entry = self.paused.get(topic)
            self.untold.discard(topic)
            try:
                await database.run(
                    scripts.pause(relay_id, topic, entry.reason) if entry else scripts.resume(relay_id, topic)
                )
            except BaseException:
                self.untold.add(topic)
                raise

    def snapshot(self) -> dict[str, Any]:
        return {
            topic: {"reason": entry.reason, "since": entry.since.isoformat(timespec="milliseconds")}
            for topic, entry in self.paused.items()
        }

    async def aclose(self) -> None:
        """Stop probing. Idempotent."""
        prober, self._prober = self._prober, None
        if prober is not None:
            prober.cancel()
            await prober.over

    def _add(self, entry: Paused) -> None:
        self.paused[entry.topic] = entry
        self.untold.add(entry.topic)
        self._changed.set()
        if self._prober is None:
            self._prober = self.tasks.keep("probing destinations", self._keep_probing)

    async def _keep_probing(self) -> None:
        """One interval for all: it grows while nothing answers, and starts anew when one does; then all others are
        asked at once."""
        while True:
            self._changed.clear()
            if not self.paused:
                await self._changed.wait()
                continue
            now = self.clock.seconds()
            wait_s = min(self._due(entry) for entry in self.paused.values()) - now
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                continue
            due = sorted((entry for entry in self.paused.values() if self._due(entry) <= now), key=lambda it: it.due)
            await asyncio.gather(*[self._probe(entry) for entry in due[:AT_ONCE]])

    def _due(self, entry: Paused) -> float:
        return entry.due if entry.blocked else max(entry.due, self._not_before)

    async def _probe(self, entry: Paused) -> None:
        if entry.blocked:
            self._resume(entry)
            return
        self.probes += 1
        outcome = await self._ask(entry.topic)
        if self.paused.get(entry.topic) is not entry:
            return  # blocked meanwhile
        match outcome:
            case Accepted() | Duplicate() | Rejected():  # a rejection is the message's matter, not an outage
                self._failures, self._not_before = 0, 0.0
                self._resume(entry)
                self._hasten(self.paused.values())
            case _:
                self._failures += 1
                entry.due = self.clock.seconds() + self.backoff.delay_s(self._failures + 1)
                self._not_before = max(self._not_before, entry.due)
                if isinstance(outcome, Unavailable):
                    entry.reason = outcome.reason

    async def _ask(self, topic: str) -> PublishOutcome:
        try:
            return await self.publisher.probe(topic)
        except Exception as error:
            # An adapter's bug must not end the probing: the topic would stay paused for ever, and silently.
            log.exception("the probe of %s failed", topic)
            return Unavailable(f"{type(error).__name__} in the probe")

    def _hasten(self, others: Iterable[Paused]) -> None:
        now = self.clock.seconds()
        for entry in others:
            if not entry.blocked and not entry.relapses and not entry.due <= now:
                entry.due = now

    def _resume(self, entry: Paused) -> None:
        del self.paused[entry.topic]
        self.untold.add(entry.topic)
        now = self.clock.seconds()
        self._lately = {topic: (at, it) for topic, (at, it) in self._lately.items() if now - at < RELAPSE_S}
        if not entry.blocked:
            self._lately[entry.topic] = (now, entry)
        log.log(
            logging.DEBUG if entry.relapses else logging.INFO,
            "destination %s is available again after %.1f s",
            *(entry.topic, (self.clock.wall() - entry.since).total_seconds()),
        )
        self.wake()
