"""Which lanes are ours: leases on the database's clock, epochs, and a fair share among the relays alive."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from relevo._version import __version__
from relevo.ports.database import Database
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.storage import laning
from relevo.storage.moving import Stands
from relevo.storage.sharing import fair_share

log = logging.getLogger("relevo.relay")
T = TypeVar("T")


@dataclass
class Ownership:
    """Lanes of one relay process. Driven by one task through ``tick``; read by another, on the same loop.

    ``lanes`` (lane → epoch) are ours as far as we know; whether they still are is checked under lock by every settle.
    ``leaving`` are those another relay should have: the owner stops taking them, settles what is in flight, and calls
    ``release``.
    """

    database: Database
    relay_id: UUID
    name: str
    lane_count: int
    lease_s: float
    send_timeout_s: float
    detail: Callable[[], dict[str, Any]] = dict
    clock: Clock = SYSTEM
    lanes: dict[int, int] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    living: Collection[UUID] = ()
    version: int = 0
    """Changes whenever ``lanes`` or ``leaving`` do."""
    paused: Set[int] = frozenset()
    """Lanes that a person paused: kept, not read."""
    source: str | None = None
    """What the lanes are read with. ``None``: whatever the tables say."""
    stands: Stands | None = None
    """What the tables said last."""
    _deadlines: dict[int, float] = field(default_factory=dict)

    async def tick(self) -> None:
        """Renew, see who lives, take what is due to us and free, and mark what is due to others.

        Raises ``UnreachableError`` when the database does not answer; the leases then run out by themselves.
        """
        asked_at = self.clock.seconds()  # before the statement is sent: the lease ends no later than we think
        renewed = await self._run(laning.renew(self._identity(), self.lanes, self.lease_s))
        self.living, self.stands = renewed.living, renewed.stands
        self._keep(renewed.kept, asked_at)
        target = self.share()
        leaving = {lane for lane in self.lanes if lane not in target}
        if leaving != self.leaving:
            self.leaving = leaving
            self.version += 1
        missing = target - self.lanes.keys()
        if missing:
            asked_at = self.clock.seconds()
            gained = await self._run(laning.acquire(self.relay_id, missing, self.lease_s, self.source))
            if gained:
                self.lanes.update(gained)
                self._deadlines.update(dict.fromkeys(gained, asked_at + self.lease_s))
                self.version += 1
                log.info("acquired %d of %d lanes, now %d", len(gained), self.lane_count, len(self.lanes))
                probe("relay.acquired")

    @property
    def complete(self) -> bool:
        """Whether this relay has exactly its share, so that the next tick need not come early."""
        return not self.leaving and self.share() == self.lanes.keys() and not (self.stands and self.stands.moving)

    @property
    def moved(self) -> bool:
        """Whether the tables are read by another source by now: whoever reads with this one gets no lane any more."""
        return self.stands is not None and self.source is not None and self.stands.source != self.source

    @property
    def away(self) -> bool:
        """Whether relays keep away from the lanes: the source is being moved, or it was."""
        return self.moved or (self.stands is not None and self.stands.moving)

    async def rested(self) -> None:
        """The source reads what ``reading`` says, and nothing else any more: told after each change."""

    def share(self) -> set[int]:
        """The lanes this relay should have, as far as is known: none while the source is moved, or once it was."""
        if self.away:
            return set()
        return fair_share(self.relay_id, self.living, self.lane_count)

    def reading(self) -> dict[int, int]:
        """What the source is to read: ``working()``, unless it can only read all lanes at once."""
        return self.working()

    def may_send(self, lanes: Iterable[int]) -> bool:
        """Whether every one of ``lanes`` is ours for at least the send time-out. Look at it before every send."""
        latest = self.clock.seconds() + self.send_timeout_s
        return all(self._deadlines.get(lane, 0.0) > latest for lane in lanes)

    def working(self) -> dict[int, int]:
        """The lanes to read: ours, without those we are leaving and those that are paused."""
        without = self.leaving | self.paused
        return {lane: epoch for lane, epoch in self.lanes.items() if lane not in without}

    def pause(self, lanes: Set[int]) -> None:
        """Read these lanes no more, and those that were paused and are not among them again."""
        if lanes != self.paused:
            self.paused = lanes
            self.version += 1

    def lose(self, lanes: Iterable[int]) -> None:
        """Forget lanes that turned out to be somebody else's."""
        lost = [lane for lane in lanes if self.lanes.pop(lane, None) is not None]
        for lane in lost:
            self._deadlines.pop(lane, None)
            self.leaving.discard(lane)
        if lost:
            self.version += 1
            log.warning("lost %d lanes to another relay; it goes on from what was settled", len(lost))

    async def release(self) -> None:
        """Give the lanes we are leaving to their next owner. Nothing of theirs may be in flight."""
        given = {lane: self.lanes[lane] for lane in self.leaving if lane in self.lanes}
        if given:
            await self._run(laning.release(self.relay_id, given))
            for lane in given:
                del self.lanes[lane]
                self._deadlines.pop(lane, None)
            log.info("handed over %d lanes, %d left", len(given), len(self.lanes))
            probe("relay.released")
        self.leaving = set()
        self.version += 1

    async def leave(self) -> None:
        """Give everything back: the next owner need not wait for the lease."""
        await self.database.run(laning.leave(self.relay_id, self.lanes))
        self.lanes, self.leaving, self._deadlines = {}, set(), {}

    async def _run(self, script: Script[T]) -> T:
        """Frozen inside, this relay must lose its locks: others would skip its lanes for ever (HARD 2)."""
        return await self.database.run(script, idle_timeout_s=self.lease_s / 2)

    def _keep(self, kept: Collection[int], asked_at: float) -> None:
        self.lose(set(self.lanes) - set(kept))
        self._deadlines.update(dict.fromkeys(kept, asked_at + self.lease_s))

    def _identity(self) -> dict[str, Any]:
        return {
            "process_id": self.relay_id,
            "name": self.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "detail": self.detail(),
        }
