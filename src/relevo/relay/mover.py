"""Scheduled messages: moved into the outbox when they are due, by one relay at a time.

Delete and insert are one transaction, so a message is scheduled or in the outbox, never both and never neither. The
duty's row is locked in it: a relay that was frozen finds its epoch gone and moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from relevo.errors import LostOwnershipError
from relevo.ports.database import Database
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.storage import duties, scheduling
from relevo.storage.duties import Duty

POLL_S = 0.5
"""How long a message scheduled a moment ago may go unnoticed."""
BATCH = 500


@dataclass
class Mover:
    """``moved``: messages moved by this process. ``wake`` is called after a move, so that the relay looks at once."""

    database: Database
    relay_id: UUID
    lease_s: float
    wake: Callable[[], None]
    clock: Clock = SYSTEM
    moved: int = 0
    _duty: Duty | None = field(default=None, init=False)
    _renew_at: float = field(default=0.0, init=False)

    async def turn(self) -> float:
        """Move what is due if the duty is ours; the seconds until the next turn. Raises as the database does."""
        if self._duty is None or self.clock.seconds() >= self._renew_at:
            self._renew_at = self.clock.seconds() + self.lease_s / 3
            self._duty = await self.database.run(duties.take(duties.MOVER, self.relay_id, self.lease_s))
        duty = self._duty
        if duty is None:
            return self.lease_s / 3
        due_s = await self.database.run(scheduling.next_due(), read_only=True)
        if due_s is not None and due_s <= 0:
            return await self._move(duty)
        left_s = max(0.0, self._renew_at - self.clock.seconds())
        return min(POLL_S, left_s, POLL_S if due_s is None else due_s)

    async def _move(self, duty: Duty) -> float:
        try:
            count = await self.database.run(self._step(duty), idle_timeout_s=self.lease_s / 2)
        except LostOwnershipError:
            self._duty = None
            raise
        probe("mover.committed")
        self.moved += count
        if count:
            self.wake()
        # Nothing moved though something is due: its row is locked by somebody who cancels it.
        return 0.0 if count else 0.05

    def _step(self, duty: Duty) -> Script[int]:
        yield from duties.hold(duty)
        count = yield from scheduling.move(self.database.dialect, BATCH)
        probe("mover.inserted")
        return count
