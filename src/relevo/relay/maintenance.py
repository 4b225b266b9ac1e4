"""Retention on a schedule: one relay at a time purges, in small batches, beside its other work."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from uuid import UUID

from relevo.errors import LostOwnershipError
from relevo.ports.database import Database
from relevo.relay.partitions import OPEN, YOUNG, PartitionPurge
from relevo.relay.purging import Purge, Purged
from relevo.runtime.clock import SYSTEM, Clock
from relevo.settings import Settings
from relevo.storage import duties
from relevo.storage.duties import Duty

log = logging.getLogger("relevo.relay")

LOOK_S = 60.0
"""How often a relay asks at most whether purging is due and nobody else's."""

EXPECTED = (OPEN, YOUNG)
"""Reasons for a partition to stay that need no line in the log."""


@dataclass
class Maintenance:
    """``lease_s``: of the duty; renewed between batches, so that a relay that dies is followed by another. ``name``: of
    the relay, for the audit."""

    database: Database
    relay_id: UUID
    settings: Settings
    lease_s: float
    clock: Clock = SYSTEM
    name: str = ""
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
        then = self.settings.retention.then
        purge = Purge(self.database, self.settings, "archive" if then == "archive" else "delete", self._between, done)
        partitions = PartitionPurge(purge, lambda: self._duty, f"relay {self.name or self.relay_id}")
        for part in (
            partitions.run if then == "partitions" else purge.outbox,
            purge.inbox,
            purge.journal,
            purge.effects,
        ):
            await part()
        await self.database.run(duties.done(duty))
        await self.database.run(duties.leave_one(duty))
        self._say(done)
        return look_s

    def _say(self, done: Purged) -> None:
        if done.total:
            log.info(
                "purged %d messages, %d inbox rows, %d journal rows, %d effects that were done",
                *(done.outbox, done.inbox, done.journal, done.effects),
            )
        for fate in done.partitions:
            if not fate.why:
                log.info("dropped the partition %s with %d messages", fate.name, fate.rows)
            elif fate.why not in EXPECTED:
                log.info("the partition %s stays: %s; it is looked at again in the next run", fate.name, fate.why)

    async def _between(self, done: Purged) -> None:
        if self.clock.seconds() < self._renew_at:
            return
        await self._renew()
        if self._duty is None:
            raise LostOwnershipError("another relay purges")

    async def _renew(self) -> None:
        self._renew_at = self.clock.seconds() + self.lease_s / 3
        self._duty = await self.database.run(duties.take(duties.PURGE, self.relay_id, self.lease_s))
