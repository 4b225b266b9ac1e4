"""Running messages again for one consumer, in the process of ``relevo replay`` and beside the live ones.

*repair*: only handlers that said ``on_replay="apply"``, whatever the inbox says. *again*: every handler. Each replay
has a generation of the inbox of its own, so that a message runs once per replay however often it is resumed. For
*again* the keys it touches are held from their first message to the end of the replay: what arrives meanwhile queues
behind, and is drained then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from relevo.bounds import answer_s
from relevo.catalog import Catalog
from relevo.consumer.availability import Availability
from relevo.consumer.consumer import Consumer
from relevo.consumer.handlers import Handler
from relevo.consumer.hangs import Hangs
from relevo.consumer.losses import DatabaseLost, Losses, passes, unknown_end
from relevo.consumer.replay_steps import again, repaired
from relevo.consumer.runs import Result, Runs, Slots, follow
from relevo.consumer.shared import CONFLICTS_MAX, unhandled, why
from relevo.consumer.start import sources_of
from relevo.consumer.threads import HandlerThreads
from relevo.consumer.work import Done, Steps
from relevo.decide import Again, HandBack, LookUp, Park, Pause, Settle, Skip, Wait
from relevo.errors import LostOwnershipError, StillRunningError, UnreachableError
from relevo.message import Message
from relevo.outcome import Accepted, Ambiguous, Conflict, Failed
from relevo.ports.broker import Delivery
from relevo.ports.database import Database
from relevo.runtime.patience import Patience
from relevo.script import Script
from relevo.settings import Settings
from relevo.storage import holding, inboxing, replaying
from relevo.storage.holding import Claimed, KeyId, key_id
from relevo.storage.replaying import Failure, Mode

log = logging.getLogger("relevo.consumer")

DELAY_MAX_S = 5.0
"""Longest wait before a failed handler runs again: a person watches a replay, and can resume it later."""
FENCE_S, FENCE_TIMEOUT_S = 0.02, 60.0
"""How often it is looked, and how long transactions that began before a key was held are waited for."""
HELD = "its key is held for another reason (waiting or parked): settle that first, then resume the replay"


@dataclass(slots=True)
class Tally:
    """What became of messages. ``skipped``: handlers that are not for this mode, types without one, and what the inbox
    knows as skipped, discarded or done in this generation."""

    handled: int = 0
    skipped: int = 0
    failures: list[Failure] = field(default_factory=list)


class Replayer:
    """Runs pages of messages for ``consumer``; keys side by side, each key in order. For one event loop."""

    def __init__(
        self,
        consumer: Consumer,
        settings: Settings,
        database: Database,
        mode: Mode,
        *,
        job_id: UUID,
        generation: int,
        holder: UUID,
        blocked: Sequence[tuple[str, bytes]] = (),
        fence_timeout_s: float = FENCE_TIMEOUT_S,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stopping = stopping
        self._consumer = consumer
        self._routes = consumer.routes()
        self._settings = settings.consumer
        self._database = database
        self._mode = mode
        self._job_id = job_id
        self._generation = generation
        self._holder = holder
        self._blocked = set(blocked)
        self._claims: dict[KeyId, Claimed | None] = {}
        self._fence_timeout_s = fence_timeout_s
        self.commits = 0
        self.held_keys: Sequence[tuple[str, bytes]] = ()
        self._threads = HandlerThreads(self._settings.threads)
        self._sources = sources_of(consumer, settings.database)
        self._catalog = Catalog(database.dialect, settings.database.schema, settings.database.prefix)
        slots = Slots(
            asyncio.Semaphore(self._settings.threads),
            asyncio.Semaphore(self._settings.connections_max),
            asyncio.Semaphore(1),
        )
        self._outage = Patience(f"replay of {consumer.name}: the database is not available: it", log)
        self._asked = Availability(database, consumer.name, lambda reason: None, idle_timeout_s=self._settings.lease_s)
        self._runs = Runs(
            *(consumer.name, self._catalog, self._sources, slots, self._threads),
            hangs=Hangs(self._asked, answer_s(self._settings.lease_s)),
            take_back=lambda id, xid: database.run(inboxing.take_back(consumer.name, [id], xid=xid)),
        )

    def wants(self, type_name: str) -> bool:
        """Whether a message of this type would run a handler in this mode."""
        handler = self._routes.find(type_name)
        return handler is not None and (self._mode == "again" or handler.on_replay == "apply")

    async def page(self, deliveries: Sequence[Delivery]) -> Tally:
        """Run them all; returns when all are done or given up. A database that is away is waited for, and at a stop
        ``UnreachableError`` is raised; the page may be run again then."""
        tally = Tally()
        keys: dict[KeyId, list[tuple[Delivery, Handler | None]]] = {}
        for delivery in deliveries:
            message = delivery.message
            handler = self._routes.find(message.type)
            if delivery.malformed is None and not self.wants(message.type):
                tally.skipped += 1
                continue
            ordered = handler is None or handler.policy.order == "key"
            keys.setdefault(key_id("consumer", self._consumer.name, message, ordered=ordered), []).append(
                (delivery, handler)
            )
        if self._mode == "again":
            await self._hold([key for key in keys if not key.alone and key not in self._claims])
        await asyncio.gather(*(self._key(key, work, tally) for key, work in keys.items()))
        return tally

    async def renew(self) -> None:
        """Keep the keys; three times per lease."""
        if self._claims:
            name, lease_s = self._consumer.name, self._settings.lease_s
            await self._database.run(holding.renew("consumer", name, self._holder, lease_s))

    async def rest(self) -> None:
        """Let go of the keys until the next page: those behind which nothing arrived are live at once, the others when
        the consumer's processes have worked off what did."""
        if self._claims:
            self._claims.clear()
            self.held_keys = await self._database.run(replaying.let_go(self._job_id, self._holder))

    async def aclose(self) -> None:
        """Let go of everything. ``held_keys`` says which keys are not live yet."""
        try:
            await self.rest()
        finally:
            await self._asked.aclose()
            self._threads.close()
            for source in set(self._sources.values()):
                await source.aclose()

    async def _hold(self, keys: Sequence[KeyId]) -> None:
        """Hold the keys, then wait until no live transaction is left that found one of them live before."""
        if not keys:
            return
        lease_s = self._settings.lease_s

        def hold() -> Script[dict[KeyId, Claimed | None]]:
            found = {}
            for key in sorted(keys, key=lambda each: (each.topic, each.key)):
                found[key] = yield from replaying.hold_key(key, self._job_id, self._holder, lease_s)
            return found

        self._claims.update(await self._database.run(hold()))
        if self._database.dialect != "postgresql":
            return  # one writer at a time: whoever wrote before has committed
        table = self._catalog.table("held_key")
        loop = asyncio.get_running_loop()
        end = loop.time() + self._fence_timeout_s
        before = {each.transaction for each in await self._database.run(replaying.running(table), read_only=True)}
        while before:
            await asyncio.sleep(FENCE_S)
            now = await self._database.run(replaying.running(table), read_only=True)
            left = [each for each in now if each.transaction in before]
            before = {each.transaction for each in left}
            if left and loop.time() > end:
                raise StillRunningError(
                    f"{len(left)} transactions of the database that began before this replay held its keys are still "
                    f"open after {self._fence_timeout_s:g} s, and may be handling one of them: "
                    f"{'; '.join(map(str, left[:3]))}. End them (pg_terminate_backend) or wait, then resume"
                )

    async def _key(self, key: KeyId, work: Sequence[tuple[Delivery, Handler | None]], tally: Tally) -> None:
        name = (key.topic, key.key)
        for delivery, handler in work:
            message = delivery.message
            if name in self._blocked:
                tally.failures.append(Failure(message, "Behind", "an earlier message of its key failed in this replay"))
            elif handler is None or delivery.malformed is not None:
                tally.failures.append(_failure(message, unhandled(message, delivery.malformed)))
            elif self._mode == "again" and not key.alone and self._claims.get(key) is None:
                self._blocked.add(name)
                tally.failures.append(Failure(message, "Held", HELD))
            else:
                outcome = await self._message(key, handler, message)
                if isinstance(outcome, Accepted):
                    tally.handled += 1
                    self.commits += 1
                elif isinstance(outcome, Failure):
                    tally.failures.append(outcome)
                    if not key.alone:
                        self._blocked.add(name)
                else:
                    tally.skipped += 1

    async def _message(self, key: KeyId, handler: Handler, message: Message) -> Result | Failure:
        """Until it ran, is known to need no run, or has failed as often as its handler's policy allows."""
        attempt, conflicts, losses = 1, 0, Losses()
        while True:
            outcome = await self._runs.once(handler, message, self._steps(key, message), attempt, replayed=True)
            if isinstance(outcome, Ambiguous):
                outcome = Accepted() if await self._looked_up(message) else unknown_end(outcome)
            if isinstance(outcome, DatabaseLost):
                outcome = await losses.weigh(outcome, self)
            elif not passes(outcome):
                losses = Losses()
            conflicts = conflicts + 1 if isinstance(outcome, Conflict) else 0
            if conflicts > CONFLICTS_MAX and isinstance(outcome, Conflict):
                outcome = Failed("conflict", outcome.reason)
            decision = follow(outcome, attempt, handler.policy)
            match decision:
                case Settle():
                    self._outage.worked()
                    return outcome
                case Again(delay_s, reason, True) | Wait(delay_s, reason):
                    delay_s, of = min(delay_s, DELAY_MAX_S), handler.policy.retry.attempts
                    self._runs.reports.again(message, outcome, reason, attempt=attempt, of=of, next_s=delay_s)
                    attempt = await asyncio.sleep(delay_s, attempt + 1)
                case Again(delay_s):
                    await asyncio.sleep(min(delay_s, DELAY_MAX_S))
                case Park() | Skip():
                    return _failure(message, outcome)
                case HandBack():
                    raise LostOwnershipError("this replay stood still until its lease was over: resume it")
                case LookUp():
                    raise AssertionError("an unknown end is looked up before it is decided about")
                case Pause(reason):
                    away = UnreachableError(reason)
                    if self._stopping():
                        raise away
                    await asyncio.sleep(self._outage.failed(away))

    def _steps(self, key: KeyId, message: Message) -> Steps[Done]:
        if self._mode == "repair":
            return repaired(self._consumer.name, key, message, self._generation)
        claim = None if key.alone else self._claims[key]
        return again(self._consumer.name, claim, message, self._generation, self._settings.lease_s)

    async def answers(self) -> bool:
        """Whether the database answers at once."""
        return await self._asked.answers()

    async def writes(self) -> bool:
        """Whether it takes a small write at once."""
        return await self._asked.writes(self._consumer.name)

    def down(self, reason: str) -> None:
        """It does not: the next attempt finds out."""

    async def _looked_up(self, message: Message) -> bool:
        """After a lost reply to COMMIT."""
        if not self._generation:
            return False
        name, generation = self._consumer.name, self._generation
        return await self._database.run(inboxing.find(name, message.event_id, generation=generation)) is not None


def _failure(message: Message, outcome: object) -> Failure:
    said = why(getattr(outcome, "reason", "") or "failed", outcome)
    return Failure(message, said.error_type, said.error or said.reason)
