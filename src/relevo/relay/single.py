"""Ownership for a source that one process reads as a whole: the reader's lease first, then all lanes.

Lanes stay what guards held keys and their drains; who has the lease has them all, the others stand by and take over
when the lease ends or is given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from relevo.relay.ownership import Ownership
from relevo.sources.wal.lease import ReaderLease


@dataclass
class SingleReader(Ownership):
    """As ``Ownership``; ``lease`` is set right after it is made."""

    lease: ReaderLease | None = None
    _epoch: int | None = None
    _announce_at: float = 0.0

    async def tick(self) -> None:
        """Renew the lease or try for it. Standing by costs a look; that this process lives is said less often."""
        # While the source is moved it is kept until what was read is saved, and not asked for again.
        ours = (self._lease.epoch is not None or not self.away) and await self._lease.renew()
        now = self.clock.seconds()
        if not ours and not self.lanes and now < self._announce_at:
            return
        self._announce_at = now + self.lease_s / 3
        if self._lease.epoch != self._epoch:
            self._epoch = self._lease.epoch
            self.version += 1
        await super().tick()
        if self.away and not self.lanes and self._lease.epoch is not None:
            self.version += 1  # it came to us before we heard of the move: ``rested`` is to give it back

    @property
    def complete(self) -> bool:
        """False while standing by: then the lease is looked at often."""
        return self._lease.epoch is not None and super().complete

    def share(self) -> set[int]:
        return set(range(self.lane_count)) if self._lease.epoch is not None and not self.away else set()

    async def rested(self) -> None:
        """Let a move have the position, once this process has saved it for the last time."""
        if self.away and not self.lanes:
            await self._lease.leave()

    def reading(self) -> dict[int, int]:
        """All lanes, those too that are paused (their messages are held), or none."""
        whole = len(self.lanes) == self.lane_count and not self.leaving and self._lease.epoch is not None
        return dict(self.lanes) if whole else {}

    def may_send(self, lanes: Iterable[int]) -> bool:
        return self._lease.left_s() > self.send_timeout_s and super().may_send(lanes)

    async def leave(self) -> None:
        await super().leave()
        await self._lease.leave()

    @property
    def _lease(self) -> ReaderLease:
        assert self.lease is not None
        return self.lease
