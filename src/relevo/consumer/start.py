"""What is checked before a consumer takes its first message."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from relevo.bounds import ANSWER_S, CLEANUP_S
from relevo.catalog import Catalog
from relevo.clients.sqlstate import sqlite_codes, sqlstates
from relevo.clients.watch import Watch
from relevo.consumer.clocks import Clocked
from relevo.consumer.consumer import Consumer
from relevo.consumer.handlers import Handler
from relevo.consumer.threads import HandlerThreads
from relevo.errors import ConfigError, UnreachableError
from relevo.policy import Backoff
from relevo.ports.database import Database
from relevo.runtime.classify import is_transient
from relevo.runtime.texts import describe
from relevo.script import Rows, Script
from relevo.settings import ConsumerSettings, DatabaseSettings
from relevo.storage import inboxing, processes
from relevo.storage.transactions import AsyncUnit, Kind, Transactions, Unit, default_kind, transactions_for


def sources_of(consumer: Consumer, settings: DatabaseSettings) -> Mapping[Handler, Transactions]:
    """A source of transactions for every handler; handlers of one kind share theirs. Raises ``ConfigError`` for a kind
    that ``tx=`` or the configured database cannot give, ``MissingExtraError`` for a missing package."""
    by_kind: dict[Kind, Transactions] = {}
    sources: dict[Handler, Transactions] = {}
    for handler in consumer.handlers:
        kind = handler.kind or default_kind(consumer.tx, settings, is_async=handler.is_async)
        if kind.is_async != handler.is_async:
            raise ConfigError(
                f"{handler.name} is {'async' if handler.is_async else 'not async'}, and Consumer(tx=…) gives "
                f"a {kind.name}"
            )
        if kind not in by_kind:
            by_kind[kind] = transactions_for(kind, consumer.tx, settings)
        sources[handler] = by_kind[kind]
    return sources


def short_window(consumer: Consumer, settings: ConsumerSettings) -> str | None:
    """What to say when the inbox forgets a message while it may still come again: ``redelivery_s`` after it was sent,
    and after all the retries of the slowest handler. ``None``: the window is long enough."""
    retries_s = max((retry_budget_s(handler.policy.retry) for handler in consumer.handlers), default=0.0)
    needed_s = settings.redelivery_s + retries_s
    if settings.inbox_window_s >= needed_s:
        return None
    return (
        f"consumer {consumer.name}: the inbox remembers a message for {settings.inbox_window_s:,.0f} s, and the same "
        f"one may come again after {needed_s:,.0f} s (consumer.redelivery_s {settings.redelivery_s:,.0f} s, and up to "
        f"{retries_s:,.0f} s of retries): it would be processed twice. Set consumer.inbox_window_s to "
        f"{needed_s:,.0f} or more"
    )


def retry_budget_s(retry: Backoff) -> float:
    """The longest that all attempts of one message can take, without the time its handler runs."""
    steps = min(retry.attempts - 1, 64)
    cap_s = retry.cap.total_seconds()
    first = sum(min(retry.base.total_seconds() * retry.factor**step, cap_s) for step in range(steps))
    return first + (retry.attempts - 1 - steps) * cap_s


def detail_of(consumer: Consumer, in_flight: int, lag: Mapping[str, int] | None) -> Mapping[str, Any]:
    """What the others can know of a running consumer."""
    return {"in_flight": in_flight, "lag": None if lag is None else dict(lag), "commands": list(consumer.commands)}


async def enter(consumer: Consumer, process_id: UUID, database: Database, registration: Script[None]) -> None:
    """Put this process among the others. Raises ``ConfigError`` when a consumer of another name that runs has a handler
    for one of the commands, too: each command would be obeyed twice. Of two that start at once the later one goes."""
    await database.run(registration)
    live = await database.run(processes.live("consumer"), read_only=True)
    before = [other for other in live if other.name != consumer.name and other.process_id < process_id]
    for other in before:
        both = (
            set(consumer.commands) & set(other.detail.get("commands", ())) if _share(consumer, other.topics) else None
        )
        if both:
            await database.run(processes.leave(process_id))
            raise ConfigError(
                f"consumer {consumer.name!r} handles the command {', '.join(sorted(both))}, and so does {other.name!r} "
                f"(process {other.pid} on {other.host}): a command has one kind of handler, and each would be obeyed "
                "twice. Stop the other one for good, or handle an event instead"
            )


def refuse_two_takers(consumers: Sequence[Consumer]) -> None:
    """The same among the consumers of one process."""
    for number, one in enumerate(consumers):
        for other in consumers[:number]:
            both = set(one.commands) & set(other.commands)
            if both and _share(one, other.topics):
                raise ConfigError(
                    f"the consumers {other.name!r} and {one.name!r} both handle the command {', '.join(sorted(both))}: "
                    "a command has one kind of handler, and each would be obeyed twice. Remove one, or handle an event"
                )


def _share(consumer: Consumer, topics: Sequence[str]) -> bool:
    return not set(topics).isdisjoint(consumer.topics)


async def verify_same_database(
    source: Transactions, database: Database, catalog: Catalog, threads: HandlerThreads
) -> None:
    """Raise ``ConfigError`` when handlers' transactions go to another database than Relevo's own connections: inbox and
    effects would not commit together."""
    other = ConfigError(
        f"Consumer(tx=…) goes to another database than database.url ({database.url}): the inbox must be in the "
        "database the handlers write to"
    )
    if source.dialect != database.dialect:
        raise other
    here = await database.run(inboxing.identity(), read_only=True)
    sql = catalog.text("inbox.identity")
    try:
        rows = await _asked(source, sql, threads)
    except ConfigError:
        raise
    except Exception as error:
        reason = f"Consumer(tx=…) gives no working transaction: {': '.join(describe(error))}"
        answered = any(sqlstates(error)) or sqlite3.SQLITE_ERROR in sqlite_codes(error)
        if answered and not is_transient(error):  # no tables there, no rights: waiting does not help
            raise ConfigError(reason) from error
        raise UnreachableError(reason) from error
    if not rows or int(rows[0][0]) != here:
        raise other


async def _asked(source: Transactions, sql: str, threads: HandlerThreads) -> Rows:
    """Within the bound of one answer, in a thread that nothing waits for. At a stop the connection is ended first: what
    waits for it leaves by itself then."""
    unit = source.unit()
    async with Clocked(Watch(ANSWER_S), unit, "a transaction of Consumer(tx=…)"):
        asking = asyncio.ensure_future(
            _ask_async(unit, sql) if source.is_async else threads.run(lambda: _ask(unit, sql))
        )
        asking.add_done_callback(lambda it: it.cancelled() or it.exception())  # it may end after it was left
        try:
            await asyncio.wait([asking])
        except asyncio.CancelledError:
            unit.sever()
            asking.cancel()
            await asyncio.wait([asking], timeout=CLEANUP_S)
            raise
        return asking.result()


def _ask(unit: Unit, sql: str) -> Rows:
    try:
        unit.begin()
        unit.prove()
        return unit.execute(sql, {})
    finally:
        unit.rollback()
        unit.close()


async def _ask_async(unit: AsyncUnit, sql: str) -> Rows:
    try:
        await unit.begin()
        await unit.prove()
        return await unit.execute(sql, {})
    finally:
        await unit.rollback()
        await unit.close()
