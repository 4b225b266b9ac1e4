"""Running a handler once, wherever it belongs, and saying what came of it as an outcome."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relevo.catalog import Catalog
from relevo.codec import UndecodableError
from relevo.consumer.event import Event
from relevo.consumer.handlers import Handler
from relevo.consumer.threads import HandlerThreads
from relevo.consumer.verdicts import Reject, Retry
from relevo.consumer.work import D, Done, Job, Progress, Steps, arun, bounded, run
from relevo.decide import Decision, HandBack, Settle, decide
from relevo.errors import LostOwnershipError
from relevo.message import Message
from relevo.outcome import Accepted, Duplicate, Failed, HandleOutcome, RejectAsked, RetryAsked
from relevo.policy import Policy
from relevo.runtime.classify import classify
from relevo.runtime.texts import clean, describe
from relevo.storage.transactions import Transactions


@dataclass(frozen=True, slots=True)
class Behind:
    """The key was held: the message is in its queue now. As good as settled."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The key is drained by somebody else; nothing happened here."""


Result = HandleOutcome | Behind | Gone


def follow(outcome: Result, attempt: int, policy: Policy) -> Decision:
    """``relevo.decide`` for what a run can end with here."""
    match outcome:
        case Behind():
            return Settle()
        case Gone():
            return HandBack()
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
    ) -> None:
        self._idle_ms = int(idle_timeout_s * 1000)
        self._consumer = consumer
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
        try:
            done = await self.drive(self._transactions[handler], steps, job, progress)
        except Retry as asked:
            return RetryAsked(asked.after, clean(asked.reason))
        except Reject as asked:
            return RejectAsked(clean(asked.reason), describe(asked)[0])
        except LostOwnershipError:
            return Gone()
        except asyncio.CancelledError as error:
            if ours():
                raise
            return Failed(*describe(error))  # something the handler awaited was cancelled, and not we
        except SystemExit as error:
            return Failed(*describe(error))  # a handler does not decide when this process ends
        except Exception as error:  # noqa: BLE001 - classified by code and type
            return classify(error, progress.stage, broken=progress.broken)
        match done:
            case "handled":
                return Accepted()
            case "duplicate":
                return Duplicate()
        return Behind()

    def event_of(
        self, handler: Handler, message: Message, attempt: int, *, replayed: bool = False
    ) -> Event[Any] | RejectAsked:
        """What the handler gets, or why it cannot be read."""
        try:
            data = handler.data_of(message)
        except UndecodableError as error:
            return RejectAsked(clean(f"the payload cannot be decoded: {error}"), "UndecodableError")
        except Exception as error:  # noqa: BLE001 - a model's own validator may raise anything
            error_type, text = describe(error)
            return RejectAsked(clean(f"the payload cannot be decoded: {error_type}: {text}"), error_type)
        return Event.of(message, data, attempt=attempt, consumer=self._consumer, replayed=replayed)

    def transactions_of(self, handler: Handler) -> Transactions:
        return self._transactions[handler]

    async def drive(
        self, transactions: Transactions, steps: Steps[D], job: Job | None, progress: Progress, *, many: bool = False
    ) -> D:
        """``steps`` in one transaction, in a thread or on the loop, once there is room. Raises what goes wrong."""
        if self._idle_ms and transactions.dialect == "postgresql":
            steps = bounded(steps, self._idle_ms)
        async with self._slots.of(transactions):
            unit = transactions.unit(many=many)
            if transactions.is_async:
                return await arun(steps, unit, self._catalog, job, progress)
            context = contextvars.copy_context()
            return await self._threads.run(lambda: context.run(run, steps, unit, self._catalog, job, progress))


def ours() -> bool:
    """Whether the ``CancelledError`` just caught is meant for this task."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
