"""Destinations that are unavailable: paused one by one, probed with backoff, resumed by themselves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from relevo.outcome import Accepted, Duplicate, Rejected, Unavailable
from relevo.policy import PROBE_BACKOFF, Backoff
from relevo.ports.broker import Publisher

log = logging.getLogger("relevo.relay")


@dataclass
class Paused:
    """One paused destination. ``since``: wall clock, for people. ``due``: monotonic, when to probe next."""

    topic: str
    reason: str
    since: datetime
    due: float
    probes: int = 0
    blocked: bool = False
    """Paused by a rejected message under the policy ``block``: resumed by time, not by a probe."""


@dataclass
class Destinations:
    """The paused destinations of one relay. No attempt of any message is spent while its destination is paused."""

    publisher: Publisher
    backoff: Backoff = PROBE_BACKOFF
    paused: dict[str, Paused] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def topics(self) -> Set[str]:
        return self.paused.keys()

    def pause(self, topic: str, reason: str) -> None:
        """Take nothing for ``topic`` until a probe succeeds."""
        if topic not in self.paused:
            log.warning(
                "destination %s is unavailable (%s): paused, probing; its messages wait, none is spent", topic, reason
            )
            self._add(topic, reason, self.backoff.delay_s(1), blocked=False)
        else:
            self.paused[topic].reason = reason

    def block(self, topic: str, reason: str, delay_s: float) -> None:
        """Take nothing for ``topic`` for ``delay_s`` seconds: its first message is rejected and policy says to wait."""
        if topic not in self.paused:
            log.error(
                "destination %s is blocked by a rejected message (%s): policy says block; trying again in %.0f s",
                topic,
                reason,
                delay_s,
            )
        self._add(topic, reason, delay_s, blocked=True)

    def _add(self, topic: str, reason: str, delay_s: float, *, blocked: bool) -> None:
        since = self.paused[topic].since if topic in self.paused else datetime.now(UTC)
        self.paused[topic] = Paused(topic, reason, since, time.monotonic() + delay_s, blocked=blocked)
        self.changed.set()

    async def probe_due(self) -> list[str]:
        """Probe what is due; returns the topics that were resumed."""
        resumed: list[str] = []
        for paused in [entry for entry in self.paused.values() if entry.due <= time.monotonic()]:
            outcome = Accepted() if paused.blocked else await self.publisher.probe(paused.topic)
            match outcome:
                case Accepted() | Duplicate() | Rejected():  # a rejection is the message's matter, not an outage
                    del self.paused[paused.topic]
                    resumed.append(paused.topic)
                    log.info("destination %s is available again after %.1f s", paused.topic, self._seconds(paused))
                case _:
                    paused.probes += 1
                    paused.due = time.monotonic() + self.backoff.delay_s(paused.probes + 1)
                    if isinstance(outcome, Unavailable):
                        paused.reason = outcome.reason
        return resumed

    def next_due_s(self) -> float | None:
        """Seconds until the next probe, ``None`` when nothing is paused."""
        if not self.paused:
            return None
        return max(0.0, min(entry.due for entry in self.paused.values()) - time.monotonic())

    def snapshot(self) -> dict[str, Any]:
        return {
            topic: {"reason": entry.reason, "since": entry.since.isoformat(timespec="milliseconds")}
            for topic, entry in self.paused.items()
        }

    @staticmethod
    def _seconds(paused: Paused) -> float:
        return (datetime.now(UTC) - paused.since).total_seconds()
