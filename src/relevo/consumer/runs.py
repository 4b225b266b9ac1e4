"""Running a handler once, wherever it belongs, and saying what came of it as an outcome."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relevo.bounds import ANSWER_S
from relevo.catalog import Catalog
from relevo.clients.watch import Watch
from relevo.codec import UndecodableError
from relevo.consumer.clocks import Clocked, Unanswered, bounded
from relevo.consumer.elsewhere import ELSEWHERE_S, Elsewhere, elsewhere, look
from relevo.consumer.event import Event
from relevo.consumer.handlers import Handler
from relevo.consumer.hangs import Hangs
from relevo.consumer.losses import DatabaseLost
from relevo.consumer.reporting import Reports
from relevo.consumer.threads import HandlerThreads
from relevo.consumer.verdicts import Reject, Retry
from relevo.consumer.work import D, Done, Job, Progress, Steps, arun, run
from relevo.decide import Again, Decision, HandBack, Pause, Settle, decide
from relevo.errors import LostOwnershipError, MisuseError
from relevo.message import Message
from relevo.outcome import Accepted, Duplicate, Failed, HandleOutcome, RejectAsked, RetryAsked, Unavailable
from relevo.policy import Policy
from relevo.runtime.calls import Raised, apart, kept, ours
from relevo.runtime.classify import classify, is_scarce
from relevo.runtime.texts import clean, describe
from relevo.storage.transactions import Transactions
from relevo.total import attribute, delay_of, text_of

LONG_S = 5.0
"""A handler that runs for longer is shown in health."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The key was held: the message is in its queue now. As good as settled."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The key is drained by somebody else; nothing happened here."""


Result = HandleOutcome | Behind | Gone | Elsewhere | DatabaseLost


def follow(outcome: Result, attempt: int, policy: Policy) -> Decision:
    """``relevo.decide`` for what a run can end with here."""
    match outcome:
        case Behind():
            return Settle()
        case Gone():
            return HandBack()
        case DatabaseLost(error_type, error):
            return Pause(f"{error_type}: {error}")
        case Elsewhere(reason):
            return Again(ELSEWHERE_S, reason, counts=False)
    return decide(outcome, attempt, policy)


@dataclass(slots=True)
class Slots:
    """How many transactions run at once: threads for plain functions, connections for coroutines, one on SQLite, which
    has one writer (others would only wait for its lock, without order)."""

    threads: asyncio.Semaphore
    connections: asyncio.Semaphore
    sqlite: asyncio.Semaphore

    def of(self, transactions: Transactions) -> asyncio.Semaphore:
        if transactions.dialect == "sqlite":
            return self.sqlite
        return self.connections if transactions.is_async else self.threads


class Runs:
    """Runs handlers of one consumer. Never raises for what a handler does; cancellation passes through."""

    def __init__(
        self,
        consumer: str,
        catalog: Catalog,
        transactions: Mapping[Handler, Transactions],
        slots: Slots,
        threads: HandlerThreads,
        *,
        idle_timeout_s: float = 0.0,
        take_back: Callable[[str, str], Awaitable[object]] | None = None,
        hangs: Hangs | None = None,
    ) -> None:
        """``take_back``: removes the inbox row of a message's id if the transaction with this xid committed it."""
        self.reports = Reports(consumer)
        self._begun: dict[int, tuple[float, Progress, Any]] = {}
        self._take_back = take_back
        if hangs is None:
            self._watch = Watch(ANSWER_S)
        else:
            self._watch = Watch(hangs.answer_s, lambda: hangs.look(self._begun.values()))
        self._idle_ms = int(idle_timeout_s * 1000)
        self._consumer = consumer
        self._what = f"a transaction of {consumer}"
        self._catalog = catalog
        self._transactions = transactions
        self._slots = slots
        self._threads = threads

    async def once(
        self, handler: Handler, message: Message, steps: Steps[Done], attempt: int, *, replayed: bool = False
    ) -> Result:
        """Decode, run ``steps`` with the handler in one transaction, classify."""
        event = self.event_of(handler, message, attempt, replayed=replayed)
        if isinstance(event, RejectAsked):
            return event
        given = [event] if handler.takes_many else event
        cause = None if handler.takes_many else message
        job = Job(cause, None, handler.function, given, handler.wants_tx, self._consumer)
        progress = Progress()
        done = await self.drive(self._transactions[handler], steps, job, progress)
        if isinstance(done, Raised) and issubclass(type(done.error), MisuseError):
            await self._undo(handler, message, progress)
        match done:
            case "handled":
                return Accepted()
            case "duplicate":
                return Duplicate()
            case Raised(error):
                if (busy := elsewhere(error, progress)) is not None:
                    return busy
                self.reports.raised(message, error)
                return failure(error, progress, handler)
        return Behind()

    async def _undo(self, handler: Handler, message: Message, progress: Progress) -> None:
        """If the handler's own commit took the inbox row with it, the next attempt would find the message done."""
        proven = self._transactions[handler].dialect == "postgresql" or progress.bypassed
        if progress.xid and self._take_back is not None and proven:
            await self._take_back(str(message.event_id), progress.xid)

    async def look(self, handler: Handler, message: Message) -> Elsewhere | None:
        """Whether another transaction runs ``message`` just now. Anything else that goes wrong shows when it runs."""
        transactions = self._transactions[handler]
        if transactions.dialect == "sqlite":
            return None  # one writer at a time: who can write the row is not under way elsewhere
        progress = Progress()
        done = await self.drive(transactions, look(self._consumer, message), None, progress)
        return elsewhere(done.error, progress) if isinstance(done, Raised) else None

    def event_of(
        self, handler: Handler, message: Message, attempt: int, *, replayed: bool = False
    ) -> Event[Any] | RejectAsked:
        """What the handler gets, or why it cannot be read."""
        try:
            data = handler.data_of(message)
        except UndecodableError as error:
            return RejectAsked(clean(f"the payload cannot be decoded: {error}"), "UndecodableError")
        except BaseException as error:
            if ours(error):
                raise
            error_type, text = describe(error, handler.place)  # a model's own validator may raise anything
            return RejectAsked(clean(f"the payload cannot be decoded: {error_type}: {text}"), error_type)
        return Event.of(message, data, attempt=attempt, consumer=self._consumer, replayed=replayed)

    def transactions_of(self, handler: Handler) -> Transactions:
        return self._transactions[handler]

    async def drive(
        self, transactions: Transactions, steps: Steps[D], job: Job | None, progress: Progress, *, many: bool = False
    ) -> D | Raised:
        """``steps`` in one transaction, in a thread or on the loop, once there is room: what they return, or what went
        wrong. Raises only the cancellation of this task."""
        if self._idle_ms and transactions.dialect == "postgresql":
            steps = bounded(steps, self._idle_ms)
        async with self._slots.of(transactions):
            unit = transactions.unit(many=many)
            self._begun[id(progress)] = time.monotonic(), progress, unit
            try:
                if transactions.dialect == "sqlite":
                    return await self._driven(transactions, unit, steps, job, progress)
                async with Clocked(self._watch, unit, self._what) as progress.watched:
                    return await self._driven(transactions, unit, steps, job, progress)
            except Unanswered as error:
                progress.broken = True
                return Raised(error)
            finally:
                del self._begun[id(progress)]

    def under_way(self, longer_s: float = LONG_S) -> list[dict[str, Any]]:
        """Handlers whose transaction has been open for longer than that, the longest first."""
        now, found = time.monotonic(), []
        for began_at, progress, _ in sorted(self._begun.values(), key=lambda each: each[0]):
            if now - began_at >= longer_s and progress.job is not None:
                job = progress.job
                events: list[Any] = job.event if isinstance(job.event, list) else [job.event]
                found.append(
                    {
                        "handler": text_of(getattr(job.function, "__qualname__", job.function)),
                        "event_id": str(getattr(events[0], "id", "")),
                        "events": len(events),
                        "seconds": round(now - began_at, 1),
                    }
                )
        return found

    async def _driven(
        self, transactions: Transactions, unit: Any, steps: Steps[D], job: Job | None, progress: Progress
    ) -> D | Raised:
        if transactions.is_async:
            return await apart(arun(steps, unit, self._catalog, job, progress))
        context = contextvars.copy_context()
        return await self._threads.run(
            lambda: kept(lambda: context.run(run, steps, unit, self._catalog, job, progress))
        )

    def abandon(self) -> None:
        """End the connections of all transactions under way: their tasks were cancelled and have not ended."""
        self._watch.end_all()


def failure(error: BaseException, progress: Progress, handler: Handler) -> Result:
    """What a run that ended with ``error`` means. Total: for anything that a handler can raise."""
    kind = type(error)
    if issubclass(kind, Retry):
        after = delay_of(attribute(error, "after"))
        return Failed(*describe(error, handler.place)) if after is None else RetryAsked(after, _reason(error))
    if issubclass(kind, Reject):
        return RejectAsked(_reason(error), describe(error, handler.place)[0])
    if issubclass(kind, LostOwnershipError) and progress.stage == "ours":
        return Gone()
    if issubclass(kind, MisuseError) and progress.job is not None:  # no further attempt can help
        error_type, text = describe(error, handler.line)
        return RejectAsked(text, error_type)
    outcome = classify(error, progress.stage, broken=progress.broken, where=handler.place)
    if progress.job is None or not isinstance(outcome, Unavailable):
        return outcome
    return DatabaseLost(*describe(error, handler.place), scarce=not progress.broken and is_scarce(error))


def _reason(asked: BaseException) -> str:
    """The reason of a ``Retry`` or ``Reject``; a class derived from them may have none."""
    reason = attribute(asked, "reason")
    return clean(reason if "reason" in (attribute(asked, "__dict__") or ()) else asked)
