"""Purging at an operator's word: the same batches as the relay's schedule, under the same duty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args
from uuid import UUID, uuid4

from relevo.errors import LostOwnershipError
from relevo.ports.database import Database
from relevo.relay.purging import Purge, Purged
from relevo.runtime.clock import boottime_s
from relevo.script import Script
from relevo.settings import Settings
from relevo.storage import auditing, duties
from relevo.storage.auditing import Act
from relevo.storage.duties import Duty

Part = Literal["outbox", "inbox", "journal"]
PARTS: tuple[Part, ...] = get_args(Part)
LEASE_S = 15.0


async def count(database: Database, settings: Settings, parts: Sequence[Part] = PARTS) -> Purged:
    """How much ``purge`` would remove now, exactly (the journal is not counted). Reads in batches, changes nothing."""

    async def between(done: Purged) -> None:
        pass

    done = Purged()
    await _run(Purge(database, settings, "count", between, done), parts)
    return done


async def purge(
    database: Database,
    settings: Settings,
    parts: Sequence[Part] = PARTS,
    *,
    actor: str,
    report: Callable[[Purged], None] = lambda done: None,
) -> Purged:
    """Remove what retention says, one small transaction after the other, and record it in the audit.

    Interrupted, what is gone is gone and the rest waits for the next run. Raises ``LostOwnershipError`` while a relay
    purges.
    """
    holder = _Holder(database)
    done = Purged()

    async def between(so_far: Purged) -> None:
        report(so_far)
        await holder.keep()

    await holder.keep()
    try:
        await _run(Purge(database, settings, settings.retention.then, between, done), parts)
    finally:
        await database.run(_finish(holder.id, settings, parts, done, actor))
    return done


async def _run(purge: Purge, parts: Sequence[Part]) -> None:
    for part in PARTS:
        if part in parts:
            await getattr(purge, part)()


def _finish(holder: UUID, settings: Settings, parts: Sequence[Part], done: Purged, actor: str) -> Script[None]:
    detail = {"outbox": done.outbox, "inbox": done.inbox, "journal": done.journal, "then": settings.retention.then}
    yield from auditing.record(Act("purge", actor, "", {"parts": list(parts)}), done.total, detail=detail)
    yield from duties.leave(holder)


@dataclass
class _Holder:
    """The duty in this command's hand."""

    database: Database
    id: UUID = field(default_factory=uuid4)
    _renew_at: float = 0.0

    async def keep(self) -> None:
        if boottime_s() < self._renew_at:
            return
        self._renew_at = boottime_s() + LEASE_S / 3
        duty: Duty | None = await self.database.run(duties.take(duties.PURGE, self.id, LEASE_S))
        if duty is None:
            raise LostOwnershipError(
                "another process is purging (a relay, by its schedule): nothing more was done here"
            )
