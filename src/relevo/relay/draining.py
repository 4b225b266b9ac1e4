"""Draining on the relay's side: what an operator freed goes out in order, before anything later of its key.

Driven by the engine between its pages, so that claims and settlements never overlap a page's; only the sending runs
beside them. While a key is here it is held, so no page sends anything of it; arrivals queue behind under its lock. With
nothing held this costs one comparison a step, else one light query a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from relevo.decide import Again, HandBack, Park, Pause, Skip, decide
from relevo.message import Message
from relevo.outcome import PublishOutcome, Rejected
from relevo.policy import Policy
from relevo.ports.broker import Publisher
from relevo.ports.database import Database
from relevo.relay import reporting
from relevo.relay.destinations import Destinations
from relevo.relay.dispositions import KeyName
from relevo.relay.ownership import Ownership
from relevo.relay.sending import send
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.probes import probe
from relevo.runtime.texts import clean
from relevo.settings import RelaySettings
from relevo.storage import draining
from relevo.storage.draining import Batch, Ending, Queued
from relevo.storage.holding import Why

log = logging.getLogger("relevo.relay")

LOOK_S = 1.0
"""How often held keys are looked at. An operator's redrive is noticed within this time."""
KEYS_MAX = 100
"""Keys drained by one batch."""


@dataclass
class Verdict:
    """``pauses`` and ``blocks`` as the engine's own pages have them."""

    endings: list[Ending] = field(default_factory=list)
    pauses: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, tuple[str, float]] = field(default_factory=dict)
    again: bool = False


@dataclass
class Draining:
    """The drain of one relay engine. ``step``, ``finish`` and ``forget`` are called by the engine's own task only."""

    database: Database
    publisher: Publisher
    ownership: Ownership
    destinations: Destinations
    settings: RelaySettings
    policy_of: Callable[[str], Policy]
    without: Callable[[], Collection[str]]
    """Topics nothing is sent to now."""
    wake: Callable[[], None]
    clock: Clock = SYSTEM
    published: int = 0
    parked_again: int = 0
    _batches: Sequence[Batch] = ()
    _sending: asyncio.Task[Mapping[int, PublishOutcome]] | None = None
    _look_at: float = 0.0

    async def step(self, held: set[KeyName]) -> None:
        """Settle what was sent, send what is due. Keys that became live leave ``held``. Raises ``UnreachableError``;
        call ``forget`` then."""
        if self._sending is not None:
            if not self._sending.done():
                return
            await self._settle(held)
        if held and self._sending is None and self.clock.seconds() >= self._look_at:
            await self._begin(held)

    def due(self, held: Collection[KeyName]) -> bool:
        """Whether ``step`` would settle or claim something: then no page may be under way."""
        if self._sending is not None:
            return self._sending.done()
        return bool(held) and self.clock.seconds() >= self._look_at

    def next_s(self, held: Collection[KeyName]) -> float | None:
        """Seconds until the next look is due; ``None`` when nothing is held."""
        if not held or self._sending is not None:
            return None
        return max(0.0, self._look_at - self.clock.seconds())

    async def finish(self, held: set[KeyName]) -> None:
        """Wait for what is under way and settle it: before lanes change hands, and at the end."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
            await self._settle(held)
        self._look_at = 0.0

    async def forget(self) -> None:
        """The database is away: what was sent may be sent again, nothing else follows of it."""
        sending, self._sending, self._batches = self._sending, None, ()
        if sending is not None:
            sending.cancel()
            await asyncio.wait([sending])

    async def _begin(self, held: set[KeyName]) -> None:
        self._look_at = self.clock.seconds() + LOOK_S
        owned, ownership = self.ownership.working(), self.ownership
        keys = await self.database.run(
            draining.due(owned, ownership.lane_count, self.without(), KEYS_MAX), read_only=True
        )
        if not keys:
            return
        batches, drained = await self.database.run(
            draining.claim(
                ownership.relay_id,
                owned,
                keys,
                dialect=self.database.dialect,
                lease_s=self.settings.lease_s,
                messages_max=self.settings.batch_max,
                bytes_max=self.settings.batch_bytes_max,
            ),
            idle_timeout_s=self.settings.lease_s / 2,
        )
        held.difference_update(drained.live)
        ownership.lose(drained.lost)
        # Of keys that somebody else's hand put there we knew nothing: from now on we do.
        held.update(batch.name for batch in batches)
        lanes = {batch.lane for batch in batches}
        if not batches or not ownership.may_send(lanes):
            return
        probe("relay.draining")
        self._batches = batches
        messages = [each.message for batch in batches for each in batch.sendable]
        self._sending = asyncio.create_task(_sent(self.publisher, messages, lambda: ownership.may_send(lanes)))
        self._sending.add_done_callback(lambda _: self.wake())

    async def _settle(self, held: set[KeyName]) -> None:
        sending, batches = self._sending, self._batches
        assert sending is not None
        self._sending, self._batches = None, ()
        outcomes = sending.result()
        probe("relay.drain_sent")
        verdict = judge(batches, outcomes, self.policy_of)
        for topic, reason in verdict.pauses.items():
            self.destinations.pause(topic, reason)
        for topic, (reason, delay_s) in verdict.blocks.items():
            self.destinations.block(topic, reason, delay_s)
        drained = await self.database.run(
            draining.settle(self.ownership.relay_id, self.ownership.lanes, verdict.endings),
            idle_timeout_s=self.settings.lease_s / 2,
        )
        probe("relay.drained")
        held.difference_update(drained.live)
        if drained.lost:
            self.ownership.lose(drained.lost)
        for ending in verdict.endings:
            self.published += len(ending.published)
            if ending.parked is not None:
                self.parked_again += 1
                at = len(ending.published) + len(ending.skipped)
                if at < len(ending.batch.queued):
                    reporting.parked(
                        ending.batch.queued[at].message, ending.parked.reason, ending.parked.error_type or ""
                    )
            for queued in ending.skipped:
                reporting.skipped(queued.message, "the broker refused it again", "")
        if drained.live:
            log.info("drained: %d held keys are live again", len(drained.live))
        if (drained.left or drained.live) and not verdict.again:
            self._look_at = 0.0  # there may be more to do


def judge(
    batches: Sequence[Batch], outcomes: Mapping[int, PublishOutcome], policy_of: Callable[[str], Policy]
) -> Verdict:
    """What becomes of each batch. ``outcomes``: by index over the readable messages of all batches, those not accepted.
    The first message of a key that is not accepted ends its batch: nothing after it is removed. Pure."""
    verdict = Verdict()
    index = 0
    for batch in batches:
        ending = Ending(batch)
        verdict.endings.append(ending)
        fates = [outcomes.get(index + place) for place in range(len(batch.sendable))]
        index += len(fates)
        if len(fates) < len(batch.queued):
            fates.append(Rejected("unreadable", batch.queued[len(fates)].unreadable or ""))
        for queued, outcome in zip(batch.queued, fates, strict=False):
            if outcome is not None and not _follow(verdict, ending, queued, outcome, policy_of):
                break
            if outcome is None:
                ending.published.append(queued)
    return verdict


def _follow(
    verdict: Verdict, ending: Ending, queued: Queued, outcome: PublishOutcome, policy_of: Callable[[str], Policy]
) -> bool:
    """What follows for one message that was not simply accepted; false: its batch ends here."""
    topic = queued.message.topic
    match decide(outcome, 1, policy_of(topic)):
        case Park(reason):
            ending.parked = Why(clean(reason), outcome.code if isinstance(outcome, Rejected) else None)
        case Skip():
            ending.skipped.append(queued)
        case Pause(reason):
            verdict.pauses[topic] = reason
        case Again(delay_s, reason):
            verdict.again = True
            if isinstance(outcome, Rejected):
                verdict.blocks[topic] = (reason, delay_s)
        case HandBack():
            verdict.again = True
        case _:  # a duplicate: as good as accepted
            ending.published.append(queued)
            return True
    return False


async def _sent(
    publisher: Publisher, messages: Sequence[Message], may_send: Callable[[], bool]
) -> Mapping[int, PublishOutcome]:
    return await send(publisher, messages, may_send) if messages else {}
