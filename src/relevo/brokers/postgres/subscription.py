"""Reading the outbox as one member of a group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import uuid4

from relevo.brokers.keeping import failed, let_finish
from relevo.brokers.postgres.lane import Lane
from relevo.brokers.postgres.link import Link
from relevo.brokers.postgres.options import PostgresOptions
from relevo.brokers.postgres.pages import Pages
from relevo.brokers.postgres.saving import Saving
from relevo.brokers.rejections import unknown_topic
from relevo.errors import ConfigError, MisuseError, RelevoError
from relevo.ports.broker import Delivery, Revoked
from relevo.signals import subscribe
from relevo.storage import grouping, windowing
from relevo.storage.cursors import Cursor
from relevo.storage.grouping import Member
from relevo.tasks import Kept, Tasks

log = logging.getLogger("relevo.brokers.postgres")

COMMIT_EVERY_S: Final = 0.25
MOVING_S: Final = 0.2
"""Between two looks at the group while lanes are on the move."""
LAG_MAX: Final = 10_000
"""Where counting what is behind stops, about."""


class PostgresSubscription:
    """The ``Subscription`` port. A task renews the lease; a loop that is blocked for longer than ``lease_s`` loses its
    lanes, and what it settles afterwards is refused by their epochs."""

    def __init__(
        self, link: Link, options: PostgresOptions, group: str, topics: Sequence[str], *, from_start: bool
    ) -> None:
        self._link = link
        self._options = options
        self._from_start = from_start
        wanted = list(dict.fromkeys(topics))
        self._member = Member(group, uuid4(), wanted, socket.gethostname(), os.getpid(), options.lease_s)
        self._missing: Sequence[str] = () if options.auto_create else wanted
        self._lanes: dict[int, Lane] = {}
        self._pages = Pages(link, self._member, self._lanes)
        self._saving = Saving(link, self._member, self._lanes)
        self._complete = True
        self._idle: Sequence[str] = ()
        self._paused = False
        self._closed = False
        self._revoked: Revoked | None = None
        self._loop = asyncio.get_running_loop()
        self._wake = subscribe()  # whoever appends in this process says so
        self._looking = asyncio.Lock()
        self._keeper: Kept | None = None
        self._troubles: dict[str, str] = {}

    async def start(self) -> None:
        """Join the group. Raises ``ConfigError`` where the outbox cannot be read as a log."""
        self._pages.lane_count = await self._link.lane_count()
        await self._look()
        tasks = Tasks(f"group {self._member.group}", log)
        self._keeper = tasks.keep("keeping the lease", self._keep, may_end=lambda: self._closed)

    async def take(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        if self._closed:
            raise MisuseError("this subscription is closed")
        deadline, pause_s = self._loop.time() + timeout_s, self._options.poll_min_s
        while not self._closed:
            if self._missing:
                self._missing = await self._link.read(grouping.unknown(self._missing))
            if self._missing:
                raise ConfigError(unknown_topic(self._missing[0]).reason)
            if not self._paused and (deliveries := self._again(max_messages) or await self._read(max_messages)):
                return deliveries
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return []
            if await self._wake.wait(min(left_s, pause_s)):
                pause_s = self._options.poll_min_s
            else:
                pause_s = min(2 * pause_s, self._options.poll_max_s)
        return []

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            lane = self._owned(delivery)
            if lane is not None:
                lane.settle(delivery.position)

    async def flush(self) -> None:
        await self._commit()

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            lane = self._owned(delivery)
            if lane is not None:
                lane.hand_back(delivery)
        self._wake.set()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._wake.set()

    def owns(self, delivery: Delivery) -> bool:
        return self._owned(delivery) is not None

    def on_revoke(self, callback: Revoked) -> None:
        self._revoked = callback

    async def lag(self) -> Mapping[str, int]:
        cursors = {lane.lane: lane.cursor for lane in self._lanes.values()}
        counts = await self._link.read(grouping.lag(self._member.topics, cursors, LAG_MAX))
        return {str(lane): count for lane, count in counts.items()}

    @property
    def problem(self) -> str | None:
        """Why the lease is not renewed or positions are not stored, while that is so."""
        return "; ".join(f"{what}: {why}" for what, why in self._troubles.items()) or None

    async def shard_count(self) -> int:
        return self._pages.lane_count

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper.over])
        try:
            await self._give(list(self._lanes.values()))
            await self._link.run(grouping.leave(self._member.group, self._member.id))
        except RelevoError as error:
            log.warning(
                "left group %s without saying so (%s): its lanes wait for the lease to run out, at most %.0f s, and "
                "messages settled last are delivered again",
                *(self._member.group, error, self._options.lease_s),
            )
        finally:
            self._lanes.clear()
            self._wake.close()
            await self._link.aclose()

    # -- taking ---------------------------------------------------------------------------------------------------

    def _again(self, max_messages: int) -> list[Delivery]:
        """What was handed back."""
        found: list[Delivery] = []
        for lane in self._lanes.values():
            if lane.returned and not lane.leaving:
                count = max_messages - len(found)
                found += lane.returned[:count]
                del lane.returned[:count]
        return found

    async def _read(self, max_messages: int) -> list[Delivery]:
        found = await self._pages.read(max_messages)
        self._saving.timeline = self._pages.timeline
        if self._pages.moved:
            self._lose(list(self._lanes))
            self._pages.moved = False
            log.warning("group %s: the database failed over; going on from what is stored there", self._member.group)
            await self._look()
        return found

    def _owned(self, delivery: Delivery) -> Lane | None:
        lane = self._lanes.get(int(delivery.shard)) if delivery.shard.isdecimal() else None
        return lane if lane is not None and lane.epoch == delivery.generation else None

    # -- the group ------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        look_at = self._loop.time() + MOVING_S
        while True:
            await asyncio.sleep(max(0.001, min(COMMIT_EVERY_S, look_at - self._loop.time())))
            part = "positions are not stored"
            try:
                await self._commit()
                self._troubles.pop(part, None)
                if self._loop.time() >= look_at:
                    part = "the lease is not renewed"
                    look_at = self._loop.time() + self._options.lease_s / 3
                    await self._look()
                    if not self._complete:
                        look_at = min(look_at, self._loop.time() + MOVING_S)
                    self._troubles.pop(part, None)
            except Exception as error:  # noqa: BLE001 - logged there
                self._troubles[part] = failed(error, self._member.group, "lanes", log)

    async def _look(self) -> None:
        async with self._looking:
            member = self._member
            epochs = {lane.lane: lane.epoch for lane in self._lanes.values()}
            view = await self._link.run(grouping.look(member, epochs, self._pages.lane_count))
            if view is None:
                await self._create()
                view = await self._link.run(grouping.look(member, {}, self._pages.lane_count))
            if view is None:
                raise ConfigError(f"the group {member.group!r} was dropped while this member joined it")
            if lost := [lane for lane, epoch in epochs.items() if lane not in view.kept and self._epoch(lane) == epoch]:
                log.warning("group %s: lost %d lanes; others go on from what was settled", member.group, len(lost))
                self._lose(lost)
            if view.idle and view.idle != self._idle:
                log.warning(
                    "group %s: a member that joined later also reads %s; this one does not, and gets no lanes until it "
                    "does or the other leaves, since it would pass those messages by",
                    *(member.group, ", ".join(view.idle)),
                )
            self._idle, self._complete = view.idle, view.complete
            for number, (epoch, cursor) in view.gained.items():
                self._lanes[number] = Lane(number, epoch, cursor)
            if view.gained:
                self._pages.changed()
                self._wake.set()
            if excess := [self._lanes[lane] for lane in view.excess if lane in self._lanes]:
                await self._give_back(excess)

    def _epoch(self, lane: int) -> int | None:
        return self._lanes[lane].epoch if lane in self._lanes else None

    async def _create(self) -> None:
        """A new group, which begins at the oldest message or at what is committed now."""
        begin = None
        if not self._from_start:
            now = await self._link.read(windowing.window(None))
            begin = Cursor(now.snapshot, now.top)
        await self._link.run(grouping.create(self._member.group, self._member.topics, begin))

    async def _give_back(self, lanes: Sequence[Lane]) -> None:
        """Let the consumer finish there, within a lease, then release."""
        for lane in lanes:
            lane.leaving = True
        self._pages.changed()
        names = [lane.name for lane in lanes]
        await let_finish(self._revoked, names, self._options.lease_s, self._member.group, "lanes", log)
        await self._give([lane for lane in lanes if self._lanes.get(lane.lane) is lane])

    async def _give(self, lanes: Sequence[Lane]) -> None:
        """Store where they stand, and release."""
        if not lanes:
            return
        for lane in lanes:
            lane.leaving = True
        self._pages.changed()
        try:
            self._lose(await self._saving.save(lanes))
            epochs = {lane.lane: lane.epoch for lane in lanes if self._lanes.get(lane.lane) is lane}
            await self._link.run(grouping.release(self._member.group, self._member.id, epochs))
        finally:
            self._lose(lane.lane for lane in lanes)

    async def _commit(self) -> None:
        self._lose(await self._saving.due())

    def _lose(self, lanes: Iterable[int]) -> None:
        lost = [lane for lane in list(lanes) if self._lanes.pop(lane, None) is not None]
        if lost:
            self._complete = False
            self._pages.changed()
        with contextlib.suppress(RuntimeError):
            self._wake.set()
