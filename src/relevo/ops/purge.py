"""Purging at an operator's word: the same batches as the relay's schedule, under the same duty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args
from uuid import UUID, uuid4

from relevo.errors import LostOwnershipError
from relevo.ports.database import Database
from relevo.relay.partitions import PartitionPurge, refuse_without
from relevo.relay.purging import Purge, Purged
from relevo.runtime.clock import boottime_s
from relevo.script import Script
from relevo.settings import Settings
from relevo.storage import auditing, duties
from relevo.storage.auditing import Act
from relevo.storage.duties import Duty
from relevo.storage.purging import Mode

Part = Literal["outbox", "partitions", "inbox", "journal", "effects"]
PARTS: tuple[Part, ...] = get_args(Part)
LEASE_S = 15.0


def chosen(settings: Settings, parts: Sequence[Part] = ()) -> Sequence[Part]:
    """The parts meant by ``parts``, all if none. The outbox goes row by row or by partitions, as ``retention.then``
    says; by partitions also when those are named."""
    by_partitions = "partitions" in parts or settings.retention.then == "partitions"
    left_out = "outbox" if by_partitions else "partitions"
    named = set(parts or PARTS) | ({"partitions"} if by_partitions and "outbox" in parts else set())
    return [part for part in PARTS if part in named and part != left_out]


async def count(database: Database, settings: Settings, parts: Sequence[Part] = ()) -> Purged:
    """How much ``purge`` would remove now, exactly (the journal is not counted). Reads in batches, changes nothing."""

    async def between(done: Purged) -> None:
        pass

    done = Purged()
    purge = Purge(database, settings, "count", between, done)
    await _run(purge, PartitionPurge(purge), chosen(settings, parts))
    return done


async def purge(
    database: Database,
    settings: Settings,
    parts: Sequence[Part] = (),
    *,
    actor: str,
    report: Callable[[Purged], None] = lambda done: None,
) -> Purged:
    """Remove what retention says, one small transaction after the other, and record it in the audit.

    Interrupted, what is gone is gone and the rest waits for the next run. Raises ``LostOwnershipError`` while a relay
    purges, ``ConfigError`` for partitions on SQLite.
    """
    parts = chosen(settings, parts)
    if "partitions" in parts:
        refuse_without(database)
    holder = _Holder(database)
    done = Purged()

    async def between(so_far: Purged) -> None:
        report(so_far)
        await holder.keep()

    await holder.keep()
    try:
        mode: Mode = "archive" if settings.retention.then == "archive" else "delete"
        run = Purge(database, settings, mode, between, done)
        await _run(run, PartitionPurge(run, lambda: holder.duty, actor), parts)
    finally:
        await database.run(_finish(holder.id, settings, parts, done, actor))
    return done


async def _run(purge: Purge, partitions: PartitionPurge, parts: Sequence[Part]) -> None:
    work = {
        "outbox": purge.outbox,
        "partitions": partitions.run,
        "inbox": purge.inbox,
        "journal": purge.journal,
        "effects": purge.effects,
    }
    for part in parts:
        await work[part]()


def _finish(holder: UUID, settings: Settings, parts: Sequence[Part], done: Purged, actor: str) -> Script[None]:
    detail = {
        "outbox": done.outbox,
        "inbox": done.inbox,
        "journal": done.journal,
        "effects": done.effects,
        "then": settings.retention.then,
    }
    yield from auditing.record(Act("purge", actor, "", {"parts": list(parts)}), done.total, detail=detail)
    yield from duties.leave(holder)


@dataclass
class _Holder:
    """The duty in this command's hand."""

    database: Database
    id: UUID = field(default_factory=uuid4)
    duty: Duty | None = None
    _renew_at: float = 0.0

    async def keep(self) -> None:
        if boottime_s() < self._renew_at:
            return
        self._renew_at = boottime_s() + LEASE_S / 3
        self.duty = await self.database.run(duties.take(duties.PURGE, self.id, LEASE_S))
        if self.duty is None:
            raise LostOwnershipError(
                "another process is purging (a relay, by its schedule): nothing more was done here"
            )
