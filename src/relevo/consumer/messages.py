"""What happens to one message that came from the broker, until it is settled, held or handed back."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass
from time import monotonic

from relevo.consumer.elsewhere import ELSEWHERE_S, Elsewhere
from relevo.consumer.handlers import Handler
from relevo.consumer.letters import given_up
from relevo.consumer.losses import DatabaseLost, Losses, passes, unknown_end
from relevo.consumer.runs import Behind, Result, follow
from relevo.consumer.shared import CONFLICTS_MAX, Shared, killer, unhandled, why
from relevo.consumer.work import first_run
from relevo.decide import Again, Decision, HandBack, LookUp, Park, Pause, Settle, Skip, Wait
from relevo.outcome import Accepted, Ambiguous, Conflict, Duplicate, Failed
from relevo.ports.broker import Delivery, Subscription
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.storage import holding, inboxing
from relevo.storage.holding import HeldState, KeyId, Why
from relevo.storage.pausing import REASON

log = logging.getLogger("relevo.consumer")

FIRST_LOOK_S = 0.1
"""How soon it is looked again whether a message still runs elsewhere; twice as long each time, up to a second."""
STORED = "stored"
"""The ``reason`` of a key whose messages were stored for a durable handler; it is drained at once."""


@dataclass(slots=True, eq=False)
class Item:
    """One delivery in hand. ``attempts``: counted so far. ``suspect``: an earlier owner never settled it."""

    delivery: Delivery
    handler: Handler | None
    key: KeyId
    attempts: int
    suspect: bool
    id: str
    """The message's id as text, made once."""
    done: asyncio.Future[None] | None = None
    """For whoever waits until it is over."""
    started: bool = False
    revoked: bool = False
    counted: int = 0
    conflicts: int = 0
    single: bool = False
    """Runs by itself: not in a batch (any more)."""
    losses: Losses | None = None
    """While the database fails under its handler."""
    elsewhere: int = 0
    """How often another process was found to run it, since it was last tried in vain."""
    most: int = sys.maxsize
    """The largest batch it may be in, since larger ones failed."""

    def over(self) -> None:
        """Nothing more happens to it here."""
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


class Messages:
    """Works deliveries off, one call of ``process`` per message. Never raises but for cancellation and bugs."""

    def __init__(self, shared: Shared, subscription: Subscription) -> None:
        self._shared = shared
        self._subscription = subscription

    async def process(self, item: Item) -> bool:
        """Until the message is done with: true if it was settled, false if it is to be handed back."""
        item.started = True
        while True:
            if self._over(item):
                self._shared.elsewhere.pop(item.delivery.message.event_id, None)
                return False
            await self._shared.database.up()
            if self._shared.pauses.stops(self._shared.name, item.key.topic, item.key.key):
                await self._hold(item, None, REASON, "waiting", None, item.attempts)
                return True
            if item.handler is not None and item.handler.durable and item.delivery.malformed is None:
                await self._hold(item, None, STORED, "draining", None, item.attempts)
                probe("consumer.stored")
                return True
            outcome = await self._attempt(item)
            if isinstance(outcome, Elsewhere):
                await self._wait_for_the_other(item)
                continue
            self._shared.elsewhere.pop(item.delivery.message.event_id, None)
            outcome = await self._weighed(item, outcome)
            decision = self._decide(item, outcome)
            settled = await self._act(item, outcome, decision)
            if settled is not None:
                return settled

    def _over(self, item: Item) -> bool:
        """Whether no further attempt may begin here."""
        return self._shared.interrupt.stopping or item.revoked or not self._subscription.owns(item.delivery)

    async def _attempt(self, item: Item) -> Result:
        delivery, handler, shared = item.delivery, item.handler, self._shared
        if handler is None or delivery.malformed is not None:
            return unhandled(delivery.message, delivery.malformed)
        if item.suspect or item.elsewhere:  # outside of the gate, which would stop everything else meanwhile
            async with shared.looking:
                found = await shared.runs.look(handler, delivery.message)
            if found is not None:
                return found
        if not item.suspect:
            async with shared.gate.beside_others():
                return await self._counted(item, handler)
        attempts = handler.policy.retry.attempts
        if item.attempts >= attempts and not item.counted:
            return killer(item.attempts)
        what = f"message {delivery.message.event_id} of consumer {shared.name}"
        async with shared.gate.alone(what, last=item.attempts + 1 >= attempts):
            return await self._counted(item, handler)

    async def _weighed(self, item: Item, outcome: Result) -> Result:
        """What it means for this message that its commit is unknown, or that the database failed under its handler."""
        shared = self._shared
        if isinstance(outcome, Ambiguous):
            id = item.delivery.message.event_id
            if await shared.database.run(lambda: inboxing.find(shared.name, id)):
                return Duplicate()
            outcome = unknown_end(outcome)
        if isinstance(outcome, DatabaseLost):
            item.losses = item.losses or Losses()
            return await item.losses.weigh(outcome, shared)
        if item.losses is not None and not passes(outcome):
            item.losses = None
        return outcome

    async def _counted(self, item: Item, handler: Handler) -> Result:
        """Commit the attempt before it is made; the first run of a healthy message needs no write of its own."""
        delivery, shared, attempt = item.delivery, self._shared, item.attempts + 1
        event_id = delivery.message.event_id
        written = item.counted < attempt and (attempt > 1 or item.suspect)
        if written:
            await shared.journal.count(event_id, attempt)
        before, item.counted = item.counted, max(item.counted, attempt)
        at = delivery.shard, shared.position_of(delivery)
        steps = first_run(shared.name, item.key, delivery.message, at, shared.bounds)
        outcome = await shared.runs.once(handler, delivery.message, steps, attempt)
        if isinstance(outcome, Elsewhere) and written:
            item.counted = before
            await shared.journal.count(event_id, item.attempts)
        return outcome

    async def _wait_for_the_other(self, item: Item) -> None:
        """Another process runs it: the message keeps its place, and its key waits. Nothing else does."""
        shared, event_id = self._shared, item.delivery.message.event_id
        shared.elsewhere.setdefault(event_id, monotonic())
        delay_s = min(ELSEWHERE_S, FIRST_LOOK_S * 2.0 ** min(item.elsewhere, 16))
        item.elsewhere += 1
        log.debug("consumer %s: another process runs message %s; looking again", shared.name, event_id)
        await shared.interrupt.sleep(delay_s, lambda: self._over(item))

    def _decide(self, item: Item, outcome: Result) -> Decision:
        if isinstance(outcome, Conflict):
            item.conflicts += 1
            if item.conflicts > CONFLICTS_MAX:
                outcome = Failed("conflict", outcome.reason)
        return follow(outcome, item.attempts + 1, self._shared.policy_of(item.handler))

    async def _act(self, item: Item, outcome: Result, decision: Decision) -> bool | None:
        """``None``: the message runs again."""
        shared = self._shared
        policy = shared.policy_of(item.handler)
        match decision:
            case Settle():
                if isinstance(outcome, Accepted):
                    probe("consumer.committed")
                    shared.commits += 1
                elif isinstance(outcome, Behind):
                    probe("consumer.held")
                shared.database.worked()
                return True
            case Again(delay_s, reason, counts):
                self._failed(item, outcome, reason, delay_s, counts=counts)
                if delay_s > policy.inline_retry_s:
                    await self._hold(item, outcome, reason, "waiting", delay_s, item.attempts + int(counts))
                    return True
                item.attempts += int(counts)
                await shared.interrupt.sleep(delay_s, lambda: self._over(item))
            case Wait(delay_s, reason):
                self._failed(item, outcome, reason, delay_s, counts=True)
                await self._hold(item, outcome, reason, "waiting", delay_s, item.attempts + 1)
                return True
            case Park(reason):
                attempts = max(item.attempts, item.counted)
                await self._hold(item, outcome, reason, "parked", None, attempts)
                shared.runs.reports.parked(
                    *(item.delivery.message, outcome, reason), attempts=attempts, letter=shared.dead_letters
                )
                return True
            case Skip(reason):
                await shared.database.run(lambda: self._skipped(item, why(reason, outcome)))
                shared.letters_wanted.set()
                attempts = max(item.attempts, item.counted)
                shared.runs.reports.skipped(
                    *(item.delivery.message, outcome, reason), attempts=attempts, letter=shared.dead_letters
                )
                return True
            case LookUp():
                raise AssertionError("an unknown end is looked up before it is decided about")
            case Pause(reason):
                shared.database.down(reason)
            case HandBack():
                return False
        return None

    def _failed(self, item: Item, outcome: Result, reason: str, next_s: float, *, counts: bool) -> None:
        """Log an attempt that failed and is followed by another."""
        message, reports = item.delivery.message, self._shared.runs.reports
        if not counts:
            reports.conflict(message, reason)
            return
        of = self._shared.policy_of(item.handler).retry.attempts
        reports.again(message, outcome, reason, attempt=item.attempts + 1, of=of, next_s=next_s)

    async def _hold(
        self, item: Item, outcome: Result | None, reason: str, state: HeldState, delay_s: float | None, attempts: int
    ) -> None:
        delivery, shared = item.delivery, self._shared
        because = why(reason, outcome)

        def hold() -> Script[None]:
            position = shared.position_of(delivery)
            fate = yield from holding.hold(
                item.key,
                delivery.message,
                delivery.shard,
                position,
                state=state,
                why=because,
                attempts=attempts,
                delay_s=delay_s,
            )
            if state == "parked" and fate == "held":
                yield from self._letter(item, because, attempts)

        await shared.database.run(hold)
        probe("consumer.held")
        shared.drain_wanted.set()
        shared.letters_wanted.set()

    def _skipped(self, item: Item, because: Why) -> Script[None]:
        message = item.delivery.message
        if (yield from inboxing.insert(self._shared.name, message.event_id, outcome="skipped")):
            yield from self._letter(item, because, max(item.attempts, item.counted))

    def _letter(self, item: Item, because: Why, attempts: int) -> Script[None]:
        delivery, position = item.delivery, self._shared.position_of(item.delivery)
        return given_up(
            self._shared,
            item.key,
            delivery.message,
            position=position,
            shard=delivery.shard,
            why=because,
            attempts=attempts,
        )
