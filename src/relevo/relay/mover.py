"""Scheduled messages: moved into the outbox when they are due, by one relay at a time.

Delete and insert are one transaction, so a message is scheduled or in the outbox, never both and never neither. The
duty's row is locked in it: a relay that was frozen finds its epoch gone and moves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from relevo.errors import LostOwnershipError, SchemaError
from relevo.ports.database import Database
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.patience import of_data, reason_of
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.storage import duties, scheduling
from relevo.storage.duties import Duty

log = logging.getLogger("relevo.relay")
T = TypeVar("T")

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
            count = await self._step(duty, scheduling.move(self.database.dialect, BATCH))
        except LostOwnershipError:
            self._duty = None
            raise
        except Exception as error:
            if not of_data(error):
                raise
            count = await self._without_the_bad(duty)
        probe("mover.committed")
        self.moved += count
        if count:
            self.wake()
        # Nothing moved though something is due: its row is locked by another process, which cancels it.
        return 0.0 if count else 0.05

    async def _without_the_bad(self, duty: Duty) -> int:
        """The outbox refuses at least one of those that are due: it is set aside, the others go on, in their order."""
        moved = 0
        ids = await self.database.run(scheduling.due_ids(BATCH), read_only=True)
        todo = [ids] if ids else []
        while todo:
            some = todo.pop()
            try:
                moved += await self._step(duty, scheduling.move_some(self.database.dialect, some))
            except Exception as error:
                if not of_data(error):
                    raise
                if len(some) > 1:
                    half = len(some) // 2
                    todo += [some[half:], some[:half]]  # the first half is taken next
                else:
                    await self._set_aside(duty, some[0], reason_of(error))
        return moved

    async def _set_aside(self, duty: Duty, schedule_id: int, why: str) -> None:
        actor = f"relay {self.relay_id}"
        try:
            found = await self._step(duty, scheduling.set_aside(schedule_id, actor, why))
        except SchemaError:  # a role whose grants are older than this: it may not write the audit
            found = await self._step(duty, scheduling.set_aside(schedule_id, actor, why, audit=False))
        if found is not None:
            log.error(
                "scheduled message %s of %s cannot be moved into the outbox and is set aside, as the audit says too "
                "(schedule_id %d); the others go on: %s",
                *(*found, schedule_id, why),
            )

    async def _step(self, duty: Duty, script: Script[T]) -> T:
        """One transaction under the duty's lock."""

        def steps() -> Script[T]:
            yield from duties.hold(duty)
            result = yield from script
            probe("mover.inserted")
            return result

        return await self.database.run(steps(), idle_timeout_s=self.lease_s / 2)
