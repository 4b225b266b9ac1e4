"""Storing how far lanes were settled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from relevo.brokers.postgres.lane import Lane
from relevo.brokers.postgres.link import Link
from relevo.storage import grouping, windowing
from relevo.storage.cursors import left_behind
from relevo.storage.grouping import Member

BRING_UP_S: Final = 1.0
"""What was settled is stored at once for its own lanes. So often at most those of the others are brought up as well."""
REST_S: Final = 5.0
"""How long a group without anything to settle lets its stored cursors stand behind: storing them is a commit."""


class Saving:
    """``timeline``: that of what was read, which what is stored must be on too."""

    def __init__(self, link: Link, member: Member, lanes: Mapping[int, Lane]) -> None:
        self.timeline: int | None = None
        self._link = link
        self._member = member
        self._lanes = lanes
        self._brought_up = 0.0
        self._one = asyncio.Lock()

    async def due(self) -> list[int]:
        """Store what was settled, and now and then what was passed. Returns the lanes that are not ours any more."""
        worked = [lane for lane in self._lanes.values() if lane.worked]
        rested_s = time.monotonic() - self._brought_up
        if rested_s > (BRING_UP_S if worked else REST_S):
            self._brought_up = time.monotonic()
            worked = [lane for lane in self._lanes.values() if lane.worked or left_behind(lane.saved, lane.cursor)]
        return await self.save(worked)

    async def save(self, lanes: Sequence[Lane]) -> list[int]:
        """Store where ``lanes`` stand; returns those that are not ours any more, of which nothing was stored."""
        async with self._one:
            cursors = {lane.lane: lane.cursor for lane in lanes if lane.cursor != lane.saved}
            if not cursors:
                return []
            if self.timeline is None:
                self.timeline = (await self._link.read(windowing.window(None))).timeline
            for lane in lanes:
                lane.worked = False
            epochs = {lane.lane: lane.epoch for lane in lanes}
            member = self._member
            try:
                script = grouping.save(member.group, member.id, epochs, cursors, self.timeline)
                _, saved = await self._link.run(script)
            except BaseException:
                for lane in lanes:
                    lane.worked = True
                raise
            for lane in lanes:
                if lane.lane in saved:
                    lane.saved = cursors[lane.lane]
            return [lane for lane in cursors if lane not in saved]
