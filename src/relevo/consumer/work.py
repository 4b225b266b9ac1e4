"""One message, one transaction: the steps, written once as a script, and its two drivers.

The steps for a message from the broker: the key's state under its lock; held → queue the message behind it and be done.
Live → the inbox row first, so that a twin collides before any effect and without aborting anybody's transaction; then
the handler; then commit. Nearly every key is live, so one statement asks and writes the row. For the head of a held
key's queue: inbox row, handler, and the removal of the copy by id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from relevo.catalog import Catalog
from relevo.clients.sqlstate import note_failure
from relevo.clients.watch import EXEMPT, Watched
from relevo.consumer.contexts import within
from relevo.consumer.trust import distrusted
from relevo.correlation import begin, handling
from relevo.errors import LostOwnershipError, MisuseError, RelevoError
from relevo.message import Message
from relevo.runtime.calls import let_go, ours, uncancelled
from relevo.runtime.classify import Stage
from relevo.runtime.probes import probe
from relevo.runtime.returned import refuse_deferred
from relevo.script import Statement
from relevo.storage import holding, inboxing
from relevo.storage.holding import Claimed, KeyId
from relevo.storage.inboxing import Bounds
from relevo.storage.transactions.base import MISUSE, AsyncUnit, Unit, finished

log = logging.getLogger("relevo.consumer")

Done = Literal["handled", "duplicate", "behind"]
D = TypeVar("D")


class BrokenInHandlerError(RelevoError):
    """The connection of the transaction was lost while the handler ran, and the handler went on."""


@dataclass(frozen=True, slots=True)
class Call:
    """The step at which the handler runs. ``xid``: PostgreSQL's name of the transaction its inbox row is written in."""

    xid: str | None = None


class Pipelined:
    """From here on statements go out without waiting for the one before, where the unit can do that; and the step at
    which that ends: an error of any of them surfaces there at the latest."""


PIPELINED = Pipelined()
SYNCED = Pipelined()


@dataclass(slots=True)
class Job:
    """One call of a handler: the message and its id as text (``None`` for several), the function, its first argument.
    A step of its own where a run has more than one; each then has a context of its own, too."""

    message: Message | None
    id: str | None
    function: Any
    event: Any
    wants_tx: bool
    consumer: str
    xid: str | None = None


Steps: TypeAlias = Generator[Statement | Call | Job | Pipelined, Any, D]


_UNWATCHED = Watched(lambda: None, 0)
"""Of runs without a clock: it is set, and nothing reads it."""


@dataclass(slots=True)
class Progress:
    """How far a run got; what an error means depends on it. ``job``: the one under way or begun last. ``calling``: it
    is under way. ``xid``: PostgreSQL's transaction of the inbox row. ``bypassed``: see ``Unit``."""

    stage: Stage = "begin"
    broken: bool = False
    bypassed: bool = False
    job: Job | None = None
    calling: bool = False
    xid: str | None = None
    watched: Watched = _UNWATCHED
    """The clock on Relevo's own statements. It does not run while a handler does."""

    def at(self, stage: Stage, looks: int = 0) -> None:
        self.stage, self.calling, self.watched.looks = stage, False, looks


def first_run(consumer: str, key: KeyId, message: Message, at: tuple[str, int | None], bounds: Bounds) -> Steps[Done]:
    """A message from the broker, whose key is believed live; the key's row says so. ``at``: shard, position."""
    xid = yield from holding.insert_live(key, message, bounds)
    if not xid:  # the key is held, or the message a duplicate
        behind = yield from holding.queued_behind(key, message, *at, bounds)
        if behind is not None:
            return "duplicate" if behind == "done" else "behind"
        xid = yield from inboxing.insert_soon(consumer, message.event_id, bounds)  # the key may be live by now
        if not xid:
            return "duplicate"
    yield Call(xid)
    return "handled"


def drained(consumer: str, claim: Claimed, message: Message, held_seq: int, bounds: Bounds) -> Steps[Done]:
    """The head of a key this process drains. Its epoch is checked with the removal, at the end, so that arrivals can
    queue behind while a slow handler runs."""
    ours = yield from inboxing.insert_soon(consumer, message.event_id, bounds)
    if ours:
        yield Call(ours)
    if not (yield from holding.remove(claim, held_seq)):
        raise LostOwnershipError(f"another process drains the key of {message.event_id} by now")
    return "handled" if ours else "duplicate"


def run(steps: Steps[D], unit: Unit, catalog: Catalog, job: Job | None, progress: Progress) -> D:
    """Drive ``steps`` in one transaction of ``unit``, blocking. Raises what went wrong, rolled back."""
    step: Any = None
    try:
        unit.begin()
        progress.at("ours")
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                done: D = stop.value
                break
            answer = None
            if isinstance(step, Statement):
                progress.watched.looks = 0
                answer = unit.execute(catalog.text(step.name), step.params)
                continue
            progress.at("handler", 0 if type(step) is Pipelined else EXEMPT)
            if isinstance(step, Job):
                progress.job, progress.calling, progress.xid = step, True, step.xid
                copy_context().run(_call_apart, unit, step)
            elif isinstance(step, Call):
                assert job is not None
                progress.job, progress.calling, progress.xid = job, True, step.xid
                _call(unit, job)
            elif step is PIPELINED:
                unit.pipeline()
            else:
                unit.sync()
            progress.at("ours")
        if progress.job is not None and unit.broken:
            raise BrokenInHandlerError
        progress.at("commit")
        unit.commit(progress.xid)
        return done
    except BaseException as error:
        misused = _note(unit, progress, error, step)
        _quietly(unit.rollback)
        if misused and _may_be_misuse(error):
            raise MisuseError(MISUSE) from error
        raise
    finally:
        steps.close()
        _quietly(unit.close)


def _note(unit: Unit | AsyncUnit, progress: Progress, error: BaseException, step: Any) -> bool:
    """Whether the connection is lost, also if the driver cannot say that; returned: whether the handler misused it.
    ``step``: the last one; the log names a statement of Relevo's."""
    let_go(error)
    if progress.stage == "ours" and type(step) is Statement and issubclass(type(error), Exception):
        note_failure(error, step.name)
    progress.watched.looks = 0
    try:
        if distrusted(error):
            unit.distrust()
        progress.broken, progress.bypassed = unit.broken, unit.bypassed
        return unit.misused
    except Exception:
        log.debug("the state of a handler's connection cannot be read", exc_info=True)
        progress.broken = True
        return False


def _may_be_misuse(error: BaseException) -> bool:
    return issubclass(type(error), Exception) and not issubclass(type(error), MisuseError)


def _quietly(end: Callable[[], None]) -> None:
    """Roll back or give back, in any state of the connection: what counts is known by then."""
    try:
        end()
    except BaseException:
        log.debug("a handler's transaction could not be ended in good order", exc_info=True)


async def _quietly_on_loop(end: Callable[[], Awaitable[None]]) -> None:
    try:
        await end()
    except BaseException as error:
        if ours(error):
            raise
        log.debug("a handler's transaction could not be ended in good order", exc_info=True)


def _call(unit: Unit, job: Job) -> None:
    with handling(job.message, job.consumer):
        _call_apart(unit, job)


def _call_apart(unit: Unit, job: Job) -> None:
    """In a context of its own."""
    begin(job.message, job.consumer, job.id)
    probe("consumer.began")
    tx = unit.enter()
    try:
        result = job.function(job.event, tx) if job.wants_tx else job.function(job.event)
    except StopIteration as error:  # no future can carry it out of the thread
        raise RuntimeError("the handler raised StopIteration") from error
    if result is not None:
        refuse_deferred(result)
    unit.leave()
    probe("consumer.handled")


async def arun(steps: Steps[D], unit: AsyncUnit, catalog: Catalog, job: Job | None, progress: Progress) -> D:
    """As ``run``, on the event loop, in a task of its own. A cancellation reaches the handler; a COMMIT that was sent
    is waited for."""
    task = asyncio.current_task()
    assert task is not None
    step: Any = None
    try:
        await unit.begin()
        progress.at("ours")
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                done: D = stop.value
                break
            answer = None
            if isinstance(step, Statement):
                progress.watched.looks = 0
                answer = await unit.execute(catalog.text(step.name), step.params)
                continue
            progress.at("handler", 0 if type(step) is Pipelined else EXEMPT)
            if isinstance(step, Job):
                progress.job, progress.calling, progress.xid = step, True, step.xid
                await within(copy_context(), _acall_apart(unit, step, task))
            elif isinstance(step, Call):
                assert job is not None
                progress.job, progress.calling, progress.xid = job, True, step.xid
                await _acall(unit, job, task)
            elif step is PIPELINED:
                await unit.pipeline()
            else:
                await unit.sync()
            progress.at("ours")
        if progress.job is not None and unit.broken:
            raise BrokenInHandlerError
        progress.at("commit")
        await finished(unit.commit(progress.xid))
        return done
    except BaseException as error:
        misused = _note(unit, progress, error, step)
        await _quietly_on_loop(unit.rollback)
        if misused and _may_be_misuse(error):
            raise MisuseError(MISUSE) from error
        raise
    finally:
        steps.close()
        await _quietly_on_loop(unit.close)


async def _acall(unit: AsyncUnit, job: Job, task: asyncio.Task[Any]) -> None:
    with handling(job.message, job.consumer):
        await _acall_apart(unit, job, task)


async def _acall_apart(unit: AsyncUnit, job: Job, task: asyncio.Task[Any]) -> None:
    """In a context of its own."""
    begin(job.message, job.consumer, job.id)
    probe("consumer.began")
    tx = await unit.enter()
    before = task.cancelling()
    result = await (job.function(job.event, tx) if job.wants_tx else job.function(job.event))
    if task.cancelling() > before:
        await uncancelled(task, before)
    if result is not None:
        refuse_deferred(result)
    await unit.leave()
    probe("consumer.handled")
