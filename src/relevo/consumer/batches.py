"""Optimistic batches: which messages go together, and what follows when they cannot.

Whatever goes wrong, the transaction is rolled back and the messages run one by one by ``Messages.process``, as if there
had never been a batch: each failure is then its own message's. A batch spends no attempt and holds no key.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from relevo.clients.sqlstate import sqlstates
from relevo.consumer.consumer import Consumer
from relevo.consumer.handlers import Handler
from relevo.consumer.messages import Item
from relevo.consumer.pipelines import Pipelines
from relevo.consumer.shared import Shared
from relevo.consumer.sizing import Costs, Size
from relevo.consumer.together import Part, Trace, together
from relevo.consumer.work import Progress
from relevo.errors import MisuseError
from relevo.outcome import Ambiguous, Conflict, HandleOutcome, RejectAsked, Unavailable
from relevo.ports.broker import Subscription
from relevo.runtime.calls import Raised
from relevo.runtime.classify import classify
from relevo.settings import ConsumerSettings
from relevo.storage import inboxing
from relevo.storage.transactions import PipelineError, StateError, Transactions
from relevo.total import chain_of, name_of

AT_ONCE = 3
"""Batches under way at once: one waits for the database while another one's handlers run. More would be smaller."""
SLOW_S = 0.001
"""A handler that needs longer waits for something itself: then as many at once as there are threads or connections."""

log = logging.getLogger("relevo.consumer")

_WAITED_TOO_LONG = "55P03"


@dataclass(slots=True, eq=False)
class Group:
    """What goes together: the same kind of transaction; of a handler that takes many, nothing but its own. One object
    for all that belong to it."""

    transactions: Transactions
    handler: Handler | None
    pipelined: bool


def batches_of(consumer: Consumer, settings: ConsumerSettings, shared: Shared, subscription: Subscription) -> Batches:
    """As the consumer's code says, else as configured."""
    largest = settings.batch if consumer.batch is None else consumer.batch
    slots = settings.threads, settings.connections_max
    return Batches(shared, subscription, largest=largest, slots=slots, pipeline=consumer.pipeline)


class Batches:
    """The ``Grouping`` of one consumer's messages, and how a batch runs. Never raises but for cancellation and bugs.

    ``largest``: messages in one transaction. ``slots``: transactions at once, in threads and on the loop. ``pipeline``:
    whether statements may go out in the driver's pipeline.
    """

    def __init__(
        self, shared: Shared, subscription: Subscription, *, largest: int, slots: tuple[int, int], pipeline: bool
    ) -> None:
        self._shared = shared
        self._subscription = subscription
        self._slots = slots
        self._pipeline = pipeline
        self._size = Size(largest)
        self._costs = Costs()
        self._groups: dict[Handler, Group | None] = {}
        self._known: dict[tuple[Transactions, Handler | None, bool], Group] = {}
        self._pipelines = Pipelines()
        self._apart: set[Handler] = set()
        """Handlers that set state of their transaction."""

    def of(self, item: Item) -> Group | None:
        """The group of a message; ``None`` for one that runs by itself."""
        handler = item.handler
        if handler is None or item.single or item.attempts or item.suspect or item.most < 2 or self._size.largest < 2:
            return None
        shared = self._shared
        if self._size.resting or handler in self._apart:
            return None
        if item.revoked or shared.interrupt.stopping or item.delivery.malformed is not None:
            return None
        if shared.pauses.all and shared.pauses.stops(shared.name, item.key.topic, item.key.key):
            return None
        if handler not in self._groups:
            self._groups[handler] = self._group_of(handler)
        group = self._groups[handler]
        if self._pipelines.without and group is not None and handler in self._pipelines.without:
            return self._group(group.transactions, group.handler, False)
        return group

    def fits(self, items: Sequence[Item], item: Item) -> bool:
        """Whether one more message may join."""
        count = len(items) + 1
        first = items[0]
        if count > self._size.now or count > first.most or count > item.most:
            return False
        return self._costs.allows(first.handler, count) and (
            item.handler is first.handler or self._costs.allows(item.handler, count)
        )

    def at_once(self, group: object) -> int:
        assert isinstance(group, Group)
        if group.transactions.dialect == "sqlite":
            return 1
        slots = self._slots[group.transactions.is_async]
        return slots if self._costs.slowest > SLOW_S else min(AT_ONCE, slots)

    async def run(self, items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
        """Those that are done, to be settled, and those that have to run again, in their order."""
        shared = self._shared
        await shared.database.up()
        parts: list[Part] = []
        for item in items:
            item.started = True
            handler, message = item.handler, item.delivery.message
            assert handler is not None
            if not self._subscription.owns(item.delivery):
                item.single = True
                continue
            event = shared.runs.event_of(handler, message, 1)
            if isinstance(event, RejectAsked):
                item.single = True  # says so, and is parked, by itself
            else:
                parts.append(Part(item, event))
        done = await self._attempt(parts) if parts else ()
        settled = {id(item) for item in done}
        return done, [item for item in items if id(item) not in settled]

    async def _attempt(self, parts: Sequence[Part]) -> Sequence[Item]:
        shared, progress, trace = self._shared, Progress(), Trace()
        group = self.of(parts[0].item)
        if group is None:
            return ()  # it stops, or was paused meanwhile
        interrupt = shared.interrupt
        steps = together(
            *(shared.name, parts, self._costs, trace),
            pipelined=group.pipelined,
            bounds=shared.bounds,
            stopping=lambda: interrupt.stopping,
        )
        async with shared.gate.beside_others():
            done = await shared.runs.drive(group.transactions, steps, None, progress, many=group.handler is None)
        if isinstance(done, Raised):
            return await self._failed(parts, group, progress, trace, done.error)
        shared.commits += 1
        self._size.succeeded(len(done))
        self._pipelines.worked(group.pipelined, {part.item.handler for part in parts})
        shared.database.worked()
        self._alone([part.item for part in trace.held])
        return [part.item for part in done]

    async def _failed(
        self, parts: Sequence[Part], group: Group, progress: Progress, trace: Trace, error: BaseException
    ) -> Sequence[Item]:
        """What of the batch is done nevertheless. The rest is told how it may run now."""
        shared, items = self._shared, [part.item for part in parts]
        log.debug("consumer %s: a batch of %d is rolled back (%s)", shared.name, len(parts), name_of(type(error)))
        if self._sets_state(parts, progress, error):
            return ()
        self._size.failed(len(parts))
        ended = progress.stage == "handler" or issubclass(type(error), MisuseError)
        if (trace.xid is not None or progress.bypassed) and ended and not progress.broken:
            await self._undo(parts, progress, trace, group.pipelined)
        if group.pipelined:
            self._blame_pipeline(parts, progress, error)
        outcome: HandleOutcome | None = classify(error, progress.stage, broken=progress.broken)
        if _WAITED_TOO_LONG in sqlstates(error):
            outcome = None
        match outcome:
            case Ambiguous():
                ids = [part.id for part in parts]
                found = await shared.database.run(lambda: inboxing.find_many(shared.name, ids))
                self._alone([part.item for part in parts if part.id not in found])
                return [part.item for part in parts if part.id in found]
            case Unavailable(reason) if progress.stage == "begin" or (progress.broken and progress.job is None):
                shared.database.down(reason)
            case Conflict():
                self._halve(items)
            case _:
                handler = items[0].handler
                if handler is not None and handler.takes_many:
                    self._halve(items)
                else:
                    self._alone(items)
        return ()

    def _alone(self, items: Collection[Item]) -> None:
        for item in items:
            item.single = True

    def _halve(self, items: Collection[Item]) -> None:
        for item in items:
            item.most = len(items) // 2

    async def _undo(self, parts: Sequence[Part], progress: Progress, trace: Trace, pipelined: bool) -> None:
        """If a handler ended the transaction despite all, the inbox rows of the others were committed by it. Those of
        messages whose handler had not returned are taken back before these run again; where it is not known which
        handler it was, all of them are."""
        running = progress.job if progress.calling and not pipelined else None
        first = next((count for count, part in enumerate(parts) if running and part.event is running.event), 0)
        ids = [part.id for part in parts[first:] if part.id in trace.written]
        if await self._shared.database.run(lambda: inboxing.take_back(self._shared.name, ids, xid=trace.xid or "")):
            log.error(
                "consumer %s: a handler committed the transaction of its batch; messages behind it run again%s",
                self._shared.name,
                ""
                if running
                else ", and as it is not known which handler it was, so do those whose effects it committed",
            )

    def _sets_state(self, parts: Sequence[Part], progress: Progress, error: BaseException) -> bool:
        """Whether the batch ended because a handler set state of its transaction. It runs by itself from now on."""
        if progress.job is None or not any(issubclass(type(each), StateError) for each in chain_of(error)):
            return False
        event = progress.job.event
        for handler in {part.item.handler for part in parts if part.event is event and part.item.handler is not None}:
            log.info(
                "consumer %s: %s sets state of its transaction: it runs by itself", self._shared.name, handler.name
            )
            self._apart.add(handler)
            self._alone([part.item for part in parts if part.item.handler is handler])
        return True

    def _blame_pipeline(self, parts: Sequence[Part], progress: Progress, error: BaseException) -> None:
        """What a pipeline cannot do is known from its error, and whose it was, unless the handler swallowed it. Other
        errors may be due to it too."""
        handlers = {part.item.handler for part in parts}
        kind = type(error)
        known = issubclass(kind, PipelineError) or name_of(kind).rpartition(".")[2] == "NotSupportedError"
        if known and progress.job is not None:
            handlers = {part.item.handler for part in parts if part.event is progress.job.event} or handlers
        for handler in self._pipelines.failed(handlers, known=known):
            log.info("consumer %s: %s runs without a pipeline", self._shared.name, handler.name)

    def _group_of(self, handler: Handler) -> Group | None:
        if handler.durable or handler.outward:
            return None
        transactions = self._shared.runs.transactions_of(handler)
        pipelined = self._pipeline and transactions.pipelines and not handler.takes_many
        return self._group(transactions, handler if handler.takes_many else None, pipelined)

    def _group(self, transactions: Transactions, handler: Handler | None, pipelined: bool) -> Group:
        name = transactions, handler, pipelined
        if name not in self._known:
            self._known[name] = Group(*name)
        return self._known[name]
