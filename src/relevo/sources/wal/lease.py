"""Who reads the slot: one process, by a lease in the position row. The others stand by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from relevo.ports.database import Database
from relevo.storage import waling


@dataclass
class ReaderLease:
    """``seconds``: the clock that the relay's leases go by. ``epoch``: ``None`` while somebody else reads."""

    database: Database
    slot: str
    holder: UUID
    lease_s: float
    seconds: Callable[[], float]
    epoch: int | None = None
    _deadline: float = field(default=0.0, init=False)

    async def renew(self) -> bool:
        """Become the reader, or stay it; whether it is ours now. Raises as the database does; it then runs out."""
        asked_at = self.seconds()  # before the statement is sent: it ends no later than we think
        epoch = await self.database.run(
            waling.lease(self.slot, self.holder, self.lease_s), idle_timeout_s=self.lease_s / 2
        )
        self.epoch = epoch
        self._deadline = 0.0 if epoch is None else asked_at + self.lease_s
        return epoch is not None

    def left_s(self) -> float:
        """Seconds until it ends by our clock; not above 0 when it is not ours."""
        return self._deadline - self.seconds() if self.epoch is not None else 0.0

    async def leave(self) -> None:
        """Give it to who stands by."""
        epoch, self.epoch, self._deadline = self.epoch, None, 0.0
        if epoch is not None:
            await self.database.run(waling.leave(self.slot, self.holder, epoch))
