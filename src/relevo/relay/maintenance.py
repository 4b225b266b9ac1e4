"""Retention on a schedule: one relay at a time purges, in small batches, beside its other work."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from uuid import UUID

from relevo.errors import LostOwnershipError
from relevo.ports.database import Database
from relevo.relay.purging import Purge, Purged
from relevo.runtime.clock import SYSTEM, Clock
from relevo.settings import Settings
from relevo.storage import duties
from relevo.storage.duties import Duty

log = logging.getLogger("relevo.relay")

LOOK_S = 60.0
"""How often a relay asks at most whether purging is due and nobody else's."""


@dataclass
class Maintenance:
    """``lease_s``: of the duty; renewed between batches, so that a relay that dies is followed by another."""

    database: Database
    relay_id: UUID
    settings: Settings
    lease_s: float
    clock: Clock = SYSTEM
    _renew_at: float = field(default=0.0, init=False)
    _duty: Duty | None = field(default=None, init=False)

    async def turn(self) -> float:
        """Purge if it is due and ours; returns the seconds until the next look. Raises as the database does."""
        every_s = self.settings.retention.every_s
        if not every_s:
            return LOOK_S
        look_s = min(LOOK_S, max(every_s / 4, 0.1))
        await self._renew()
        duty = self._duty
        if duty is None:
            return look_s
        if duty.done_age_s is not None and duty.done_age_s < every_s:
            await self.database.run(duties.leave_one(duty))
            return min(look_s, every_s - duty.done_age_s)
        done = Purged()
        purge = Purge(self.database, self.settings, self.settings.retention.then, self._between, done)
        for part in (purge.outbox, purge.inbox, purge.journal):
            await part()
        await self.database.run(duties.done(duty))
        await self.database.run(duties.leave_one(duty))
        if done.total:
            log.info("purged %d messages, %d inbox rows, %d journal rows", done.outbox, done.inbox, done.journal)
        return look_s

    async def _between(self, done: Purged) -> None:
        if self.clock.seconds() < self._renew_at:
            return
        await self._renew()
        if self._duty is None:
            raise LostOwnershipError("another relay purges")

    async def _renew(self) -> None:
        self._renew_at = self.clock.seconds() + self.lease_s / 3
        self._duty = await self.database.run(duties.take(duties.PURGE, self.relay_id, self.lease_s))
