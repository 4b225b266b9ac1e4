"""``relevo bench`` as a function: append into the real outbox, drain it with a relay process, follow at a rate.

Everything is of a topic of its own, and the rows are removed at the end, also after an error. The relay is a real one:
so it refuses where other relays work or other messages wait, which it would measure, or send."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from relevo.brokers import broker_for, confirms
from relevo.clients import database_for
from relevo.errors import CheckFailedError
from relevo.ops.bench_report import BenchReport, Latency, Plan, machine
from relevo.ops.bench_work import Arrivals, RelayProcess, Wrote, write
from relevo.ops.status import status
from relevo.ports.broker import Broker
from relevo.ports.database import Database
from relevo.runtime.clock import boottime_s
from relevo.settings import Settings
from relevo.storage import auditing, benching
from relevo.storage.auditing import Act
from relevo.storage.ready import ensure_ready
from relevo.storage.transactions import Transactions, default_kind, transactions_for

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything. ``writers``: connections at once; SQLite has one writer at a time."""

    topic: str = "relevo.bench"
    events: int = 20_000
    bytes: int = 300
    writers: int = 4
    rate: int = 100
    seconds: float = 10.0


async def look(settings: Settings, sizes: Sizes) -> Plan:
    """What ``bench`` would do; changes nothing. Raises ``CheckFailedError`` where relays run or messages wait,
    ``UnreachableError`` or ``SchemaError`` for database and broker."""
    async with aclosing(database_for(settings.database, connections_max=1)) as database:
        broker = broker_for(settings.broker.url, settings.broker.options)
        await broker.check()
        return await _plan(database, broker, settings, sizes)


async def bench(
    settings: Settings, sizes: Sizes, *, relay: Sequence[str], actor: str, say: Say = lambda text: None
) -> BenchReport:
    """Measure. ``relay``: the command of the relay's process, with the same settings. Raises as ``look`` does, and
    ``CheckFailedError`` when the relay ends or nothing arrives for a minute."""
    database = database_for(settings.database, connections_max=2)
    transactions = transactions_for(default_kind(None, settings.database, is_async=False), None, settings.database)
    try:
        broker = broker_for(settings.broker.url, settings.broker.options)
        plan = await _plan(database, broker, settings, sizes)
        await broker.ensure_topics([plan.topic])
        since = await database.run(benching.newest(), read_only=True)
        facts = await database.run(benching.facts(), read_only=True)
        try:
            async with _arriving(broker, plan) as arrivals:
                measured = await _measure(settings, plan, transactions, arrivals, relay, say)
        finally:
            removed = await asyncio.shield(_remove(database, plan, since, actor))
    finally:
        await transactions.aclose()
        await database.aclose()
    return BenchReport(
        plan=plan,
        append_per_s=measured.append_per_s,
        first_event_s=measured.first_event_s,
        drain_per_s=measured.drain_per_s,
        steady_per_s=measured.steady_per_s,
        latency=measured.latency,
        relay_cpu_s=measured.relay_cpu_s,
        removed=removed,
        database_settings=facts,
        broker_confirms=confirms(settings.broker.url),
        broker_options=sorted(settings.broker.options),
        machine=machine(),
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    append_per_s: float
    first_event_s: float
    drain_per_s: float
    steady_per_s: float | None
    latency: Latency
    relay_cpu_s: float


async def _plan(database: Database, broker: Broker, settings: Settings, sizes: Sizes) -> Plan:
    ready = await ensure_ready(database, settings)
    now = await status(database, settings)
    if now.relays:
        raise CheckFailedError(
            f"{len(now.relays)} relays work on this outbox: stop them for the length of the bench, or use a database "
            "of its own"
        )
    if now.pending.count:
        raise CheckFailedError(
            f"{now.pending.count:,} messages wait in this outbox: the bench's relay would send them. Let a relay "
            "finish first, or use a database of its own"
        )
    return Plan(
        database=database.url,
        broker=broker.url,
        source=ready.source,
        topic=sizes.topic,
        consumer=f"{sizes.topic}.consumer",
        events=sizes.events,
        bytes=sizes.bytes,
        writers=1 if database.dialect == "sqlite" else sizes.writers,
        rate=sizes.rate,
        seconds=sizes.seconds,
    )


@contextlib.asynccontextmanager
async def _arriving(broker: Broker, plan: Plan) -> AsyncIterator[Arrivals]:
    subscription = await broker.subscribe(plan.consumer, [plan.topic])
    arrivals = Arrivals(subscription)
    reading = asyncio.create_task(arrivals.run())
    try:
        yield arrivals
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await subscription.aclose()


async def _measure(
    settings: Settings, plan: Plan, transactions: Transactions, arrivals: Arrivals, relay: Sequence[str], say: Say
) -> _Measured:
    say(f"appending {plan.events:,} events, each in a transaction of its own")
    begun = boottime_s()
    wrote = await write(settings, plan, transactions, plan.events)
    append_per_s = plan.events / (boottime_s() - begun)
    say("draining them")
    cpu_before = _children_cpu_s()
    with RelayProcess(relay) as process:
        began = boottime_s()
        await arrivals.all_of(wrote, process)
        came = sorted(arrivals.seen[each.event_id] for each in wrote)
        say(f"following {plan.rate:,} events/s for {plan.seconds:g} s")
        begun = boottime_s()
        followed = await write(settings, plan, transactions, plan.followed, rate=plan.rate)
        reached = len(followed) / (boottime_s() - begun)
        await arrivals.all_of(followed, process)
    return _Measured(
        append_per_s,
        came[0] - began,
        len(came) / (came[-1] - began),
        _steady(came),
        _latency(arrivals, followed, reached),
        _children_cpu_s() - cpu_before,
    )


def _steady(came: Sequence[float]) -> float | None:
    """``None`` where too few came for a rate: in one batch."""
    low, high = int(len(came) * 0.15), max(int(len(came) * 0.9) - 1, 0)
    took = came[high] - came[low] if high > low else 0.0
    return (high - low) / took if took > 0 else None


def _latency(arrivals: Arrivals, followed: Sequence[Wrote], reached: float) -> Latency:
    late = [max(0.0, arrivals.seen[each.event_id] - each.committed_s) * 1000 for each in followed]
    cuts = statistics.quantiles(late, n=100, method="inclusive") if len(late) > 1 else late * 99
    return Latency(
        events=len(late),
        reached_per_s=reached,
        p50_ms=cuts[49],
        p95_ms=cuts[94],
        p99_ms=cuts[98],
        max_ms=max(late),
    )


async def _remove(database: Database, plan: Plan, since: int, actor: str) -> int:
    """The rows of the bench, and an audit row that says so."""
    removed = 0
    while count := await database.run(benching.remove(database.dialect, plan.topic, since)):
        removed += count
    await database.run(auditing.record(Act("bench", actor, "", {"topic": plan.topic}), removed))
    return removed


def _children_cpu_s() -> float:
    """CPU of ended child processes, which here is the relay."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
