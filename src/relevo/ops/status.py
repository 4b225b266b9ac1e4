"""``relevo status`` as a function: a few cheap queries that do not depend on the backlog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relevo.catalog import Catalog
from relevo.errors import SchemaError
from relevo.ops import groups
from relevo.ops.status_report import (
    Consumer,
    DeadLetters,
    Destination,
    Effects,
    Held,
    Lanes,
    OutboxPartition,
    Paused,
    Pending,
    Relay,
    Scheduled,
    SourceMove,
    Status,
    Transaction,
    are,
    of,
)
from relevo.ports.database import Database
from relevo.script import Row, Rows, Script, Statement
from relevo.settings import Settings
from relevo.storage import effecting, moving, partitioning, pausing, processes, purging, slotting, waling, windowing
from relevo.storage.migrating import code_version

COUNT_CAP = 100_000
"""Counts stop here: an index-only scan of this many entries takes milliseconds, of a million does not."""

LONG_TRANSACTION_S = 60.0
"""A transaction that is open longer keeps vacuum from cleaning the outbox, and is worth a warning."""

LETTERS_LATE_S = 60.0
"""How long a dead letter may wait before `status` warns."""


async def status(database: Database, settings: Settings) -> Status:
    """Gather the status in one transaction, which on SQLite only reads.

    Raises ``SchemaError`` for missing or older tables, ``UnreachableError`` when the database does not answer.
    """
    catalog = Catalog(database.dialect, settings.database.schema, settings.database.prefix)
    return await database.run(gather(catalog, database.url), read_only=True)


def gather(catalog: Catalog, url: str) -> Script[Status]:
    """The script behind ``status``."""
    meta = yield from _meta(catalog)
    version, _, source, lane_count, *_ = meta
    capped = {"cap": COUNT_CAP + 1}
    pending, oldest = yield from _pending(source)
    owners = yield Statement("status.lanes")
    paused = yield Statement("status.destinations")
    held = yield Statement("status.held", capped)
    scheduled = yield Statement("status.scheduled", capped)
    live = yield from processes.live()
    pauses = yield from pausing.load()
    effects = yield from effecting.counts()
    letters = yield Statement("letters.by_consumer")
    partitions = yield from _partitions(catalog)
    transactions, hidden = yield from _transactions(catalog)
    report = Status(
        database=url,
        schema_version=version,
        source=source,
        pending=Pending(**_capped(pending), oldest_age_s=oldest),
        lanes=Lanes(total=lane_count, free=lane_count - sum(row[1] for row in owners)),
        relays=_relays(live, owners),
        destinations_paused=[Destination(topic=row[0], reason=row[1] or "", paused_s=row[2]) for row in paused],
        held=[_held(row) for row in held],
        scheduled=Scheduled(**_capped(scheduled[0][0]), next_due_s=scheduled[0][1]),
        consumers=[_consumer(process) for process in live if process.role == "consumer"],
        long_transactions=[
            Transaction(pid=pid, age_s=age_s, state=state or "", query=query or "")
            for pid, age_s, state, query in transactions
        ],
        warnings=[],
        effects=[Effects(name=row[0], state=row[1], count=row[2], oldest_age_s=row[3]) for row in effects],
        dead_letters=[
            DeadLetters(consumer=row[0], count=row[1], refused=row[2], oldest_age_s=row[3], problem=row[4])
            for row in letters
        ],
        paused=[_paused(pause) for pause in pauses.all],
        partitions=partitions,
        source_move=(yield from _move()),
        groups=(yield from groups.gather(catalog.dialect)),
    )
    report.warnings.extend((yield from _forgotten_slot(catalog, source)))
    return _with_warnings(report, live, hidden, meta)


def _forgotten_slot(catalog: Catalog, source: str) -> Script[list[str]]:
    """A slot of ours that nobody reads: a move that was given up, or did not end."""
    if catalog.dialect != "postgresql" or source == "wal":
        return []
    name = yield from slotting.slot_name()
    slot = yield from slotting.find(name)
    if slot is None:
        return []
    # With a position it was read: events without a table may be in it.
    left = (yield from waling.stored(name)) is not None
    return [
        f"the replication slot {name} keeps {slot.behind or 0:,} bytes of WAL, though the source is {source!r}: it "
        "fills the disk. A move that was begun and goes on needs it; else "
        + (f"empty and drop it: relevo source move {source}" if left else "drop it: relevo slot drop")
    ]


def _meta(catalog: Catalog) -> Script[Row]:
    rows = yield Statement("meta.read", {"outbox": catalog.table("outbox")})
    if not rows:
        raise SchemaError()
    ours = code_version(catalog.dialect)
    if rows[0][0] < ours:
        raise SchemaError(
            f"Relevo's tables have schema version {rows[0][0]}, this version of Relevo needs {ours}. "
            "Run: relevo migrate"
        )
    return rows[0]


def _pending(source: str) -> Script[tuple[int, float | None]]:
    """How many messages wait, up to the cap, and the age of the oldest: by their markers, or by cursors."""
    if source in ("log", "wal"):
        return (yield from windowing.pending(COUNT_CAP + 1))
    count = yield Statement("status.pending", {"cap": COUNT_CAP + 1})
    oldest = yield Statement("status.oldest")
    return count[0][0], oldest[0][0] if oldest else None


def _move() -> Script[SourceMove | None]:
    begun = yield from moving.begun()
    if begun is None:
        return None
    stands = yield from moving.stands()
    return SourceMove(
        job_id=begun.job_id,
        origin=begun.origin,
        target=begun.target,
        marked=begun.done,
        age_s=begun.age_s,
        closed=stands.moving,
    )


def _partitions(catalog: Catalog) -> Script[list[OutboxPartition]]:
    if catalog.dialect != "postgresql":
        return []
    found = yield from partitioning.listed()
    now_s = yield from purging.now()
    return [
        OutboxPartition(
            name=each.name,
            rows=each.rows,
            size_bytes=each.size_bytes,
            open=place >= len(found) - 2,
            unsettled=each.unsettled,
            oldest_age_s=None if each.first_created_s is None else now_s - each.first_created_s,
        )
        for place, each in enumerate(found)
        if len(found) > 1
    ]


def _transactions(catalog: Catalog) -> Script[tuple[Rows, int]]:
    if catalog.dialect != "postgresql":
        return (), 0  # SQLite keeps no list of them
    transactions = yield Statement("status.transactions", {"older_than_s": LONG_TRANSACTION_S})
    hidden = yield Statement("status.hidden_sessions")
    return transactions, int(hidden[0][0])


def _capped(count: int) -> dict[str, Any]:
    return {"count": min(count, COUNT_CAP), "count_capped": count > COUNT_CAP}


def _relays(live: Sequence[processes.Process], owners: Rows) -> list[Relay]:
    lanes = {str(holder): (count, low, high) for holder, count, low, high in owners}
    relays = []
    for process in live:
        if process.role == "relay":
            count, low, high = lanes.get(str(process.process_id), (0, None, None))
            relays.append(
                Relay(
                    process_id=str(process.process_id),
                    name=process.name,
                    host=process.host,
                    pid=process.pid,
                    version=process.version,
                    age_s=process.age_s,
                    lanes=count,
                    epoch_min=low,
                    epoch_max=high,
                    passing=bool(process.detail.get("passing")),
                    **process.health,
                )
            )
    return relays


def _paused(pause: pausing.Pause) -> Paused:
    target = pause.target
    return Paused(
        kind=target.kind,
        name=target.name,
        topic=target.topic,
        consumer=target.consumer,
        who=pause.who,
        why=pause.why,
        since=pause.since.isoformat(timespec="seconds"),
        paused_s=pause.age_s,
    )


def _held(row: Row) -> Held:
    side, consumer, topic, state, keys, messages, oldest_age_s = row
    return Held(
        side=side,
        consumer=consumer,
        topic=topic,
        state=state,
        keys=keys,
        messages=messages,
        messages_capped=messages > COUNT_CAP,
        oldest_age_s=oldest_age_s,
    )


def _consumer(process: processes.Process) -> Consumer:
    lag = process.detail.get("lag")
    return Consumer(
        process_id=str(process.process_id),
        name=process.name,
        host=process.host,
        pid=process.pid,
        version=process.version,
        topics=list(process.topics),
        age_s=process.age_s,
        lag=sum(lag.values()) if isinstance(lag, dict) and lag else None,
        **process.reading,
        **process.health,
    )


def _with_warnings(report: Status, live: Sequence[processes.Process], hidden: int, meta: Row) -> Status:
    warnings = report.warnings
    if report.pending.count and not report.relays:
        warnings.append("messages are pending and no relay is running. Start one: relevo relay")
    elif report.relays and report.lanes.free:
        warnings.append(
            f"{report.lanes.free} of {are(report.lanes.total, 'lane', report.lanes.free)} free at this moment; their "
            "messages wait until a relay takes them, which is a matter of seconds after a start or stop"
        )
    if (move := report.source_move) is not None:
        warnings.append(
            f"a move from {move.origin!r} to {move.target!r} was begun {move.age_s:.0f} s ago"
            f"{' and keeps the relays from their lanes' if move.closed else ''}. If nobody runs it any more, go on "
            f"with it: relevo source move {move.target}"
        )
    parked = sum(held.keys for held in report.held if held.state == "parked")
    if parked:
        warnings.append(f"{are(parked, 'key')} parked; an operator has to look: relevo parked list")
    warnings += groups.warnings(report.groups)
    warnings += processes.topic_conflicts(live)
    warnings += processes.command_conflicts(live)
    unknown = sum(each.count for each in report.effects if each.state == "unknown")
    if unknown:
        warnings.append(
            f"{are(unknown, 'effect')} of unknown outcome: an operator has to find out whether "
            f"{'it was' if unknown == 1 else 'they were'} done. Look: relevo effects list --state unknown"
        )
    for each in report.dead_letters:
        if each.refused or each.oldest_age_s > LETTERS_LATE_S:
            warnings.append(
                f"{are(each.count, 'dead letter')} not published after {each.oldest_age_s:.0f} s"
                f"{f' ({each.problem})' if each.problem else ''}: the processes of consumer {each.consumer} try again"
            )
    for transaction in report.long_transactions:
        who = f"pid {transaction.pid}" if transaction.pid is not None else "a prepared transaction"
        warnings.append(
            f"{who} has had a transaction open for {transaction.age_s:.0f} s ({transaction.state}): "
            f"{' '.join(transaction.query.split())[:80]}. Delivery goes on, but vacuum cannot clean the outbox "
            "meanwhile"
        )
    if hidden:
        warnings.append(
            f"this role does not see the transactions of {of(hidden, 'session')}, so long ones may be missing here. "
            "Grant it pg_read_all_stats"
        )
    if meta[7] not in (None, 1):
        warnings.append(f"the outbox's sequence has CACHE {meta[7]}, which inverts the order of a key's messages")
    return report
