"""Several messages, one transaction: the steps, as a script.

The held keys are looked up under the transaction, and what belongs to one is left out: it goes the long way. One insert
writes all inbox rows, in sorted order; then each handler whose message is new; then one commit. The transaction waits
for no lock longer than ``inboxing.LOCK_MS``, so that a handler that does holds up no other keys; handlers of an
application that has set a ``lock_timeout`` wait as long as that says. When its time is over, the
process stops or a shard goes away, it commits what was done until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter

from relevo.consumer.event import Event
from relevo.consumer.messages import Item
from relevo.consumer.sizing import BUDGET_S, Costs
from relevo.consumer.work import PIPELINED, SYNCED, Job, Steps
from relevo.script import Statement
from relevo.storage import holding, inboxing
from relevo.storage.inboxing import Bounds


@dataclass(slots=True)
class Trace:
    """What is known of a batch besides its end. ``xid``: PostgreSQL's name of the transaction. ``written``: ids that
    got their inbox row in it."""

    xid: str | None = None
    written: Collection[str] = ()
    held: Sequence[Part] = ()


@dataclass(slots=True)
class Part:
    """One message of a batch, decoded."""

    item: Item
    event: Event[object]

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def name(self) -> tuple[str, bytes]:
        return self.item.key.topic, self.item.key.key


def together(
    consumer: str,
    parts: Sequence[Part],
    costs: Costs,
    trace: Trace,
    *,
    pipelined: bool,
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    stopping: Callable[[], bool] = lambda: False,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = perf_counter,
) -> Steps[Sequence[Part]]:
    """Returns the parts that are done, handled or known before. ``trace.held``: those whose keys are held."""
    rows = yield Statement("inbox.together", {"consumer": consumer, **bounds.params()})
    lock_timeout, _, any_held, trace.xid = rows[0][:4]
    if any_held:
        held = yield from holding.among("consumer", consumer, {part.name for part in parts})
        trace.held = [part for part in parts if part.name in held]
        parts = [part for part in parts if part.name not in held]
    if not parts:
        return parts
    new = trace.written = yield from inboxing.insert_many(consumer, [part.id for part in parts])
    if lock_timeout != "0":
        yield Statement("inbox.lock_timeout", {"value": lock_timeout})  # the application's, for the handlers
    ran = [part for part in parts if part.id in new] if len(new) < len(parts) else parts
    handler = parts[0].item.handler
    assert handler is not None
    began = clock()
    if handler.takes_many:
        if ran:
            events = [part.event for part in ran]
            yield Job(None, None, handler.function, events, handler.wants_tx, consumer, trace.xid)
            costs.took(handler, (clock() - began) / len(ran))
        return parts
    if pipelined:
        yield PIPELINED
    before = began
    for count, part in enumerate(ran):
        handler = part.item.handler
        assert handler is not None
        item = part.item
        job = Job(item.delivery.message, item.id, handler.function, part.event, handler.wants_tx, consumer, trace.xid)
        yield job
        now = clock()
        costs.took(handler, now - before)
        before = now
        if count + 1 < len(ran) and (now - began > budget_s or stopping() or ran[count + 1].item.revoked):
            left = {each.id for each in ran[count + 1 :]}
            if pipelined:
                yield SYNCED
            yield from inboxing.take_back(consumer, list(left))
            return [each for each in parts if each.id not in left]
    if pipelined:
        yield SYNCED
    return parts
