"""Reading pages of the log for the lanes that are ours."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from relevo.brokers.postgres.lane import Lane
from relevo.brokers.postgres.link import Link
from relevo.brokers.postgres.rows import messages
from relevo.ports.broker import Delivery
from relevo.script import Row, Rows, Script
from relevo.storage import grouping, windowing
from relevo.storage.cursors import EVERY
from relevo.storage.grouping import Member
from relevo.storage.readers import Part, Reader, Readers, sweep

PAGE_BYTES_MAX: Final = 16_000_000
"""Payload bytes after which a page ends."""


class Pages:
    """``lanes``: those that are ours, changed by the subscription, which then calls ``changed``. ``moved``: the server
    is on another timeline than what is in memory."""

    def __init__(self, link: Link, member: Member, lanes: Mapping[int, Lane]) -> None:
        self.lane_count = 0
        self.timeline: int | None = None
        self.moved = False
        self._link = link
        self._member = member
        self._lanes = lanes
        self._readers = Readers()
        self._stale = True
        self._reading = asyncio.Lock()

    def changed(self) -> None:
        """Other lanes are to be read from now on. A page that is being read now is not delivered to those lost."""
        self._stale = True

    async def read(self, max_messages: int) -> list[Delivery]:
        """The next page, if there is one. Raises as ``Link.read`` does; nothing is passed then."""
        async with self._reading:
            if self._stale:
                self._group()
            if not self._readers.readers:
                return []
            at = {lane.lane: lane for lane in self._lanes.values() if not lane.leaving}
            parts: list[tuple[Part, Rows]] = []
            self._stale = False
            try:
                await self._link.read(self._script(at, max_messages, parts), by_index=True)
            except BaseException:
                self._stale = True  # readers have moved on, lanes have not
                raise
            if self.moved:
                return []
            return self._deliver(at, parts)

    def _group(self) -> None:
        """Readers anew, from where their lanes stand."""
        found: dict[object, Reader] = {}
        for lane in self._lanes.values():
            if not lane.leaving:
                reader = found.setdefault(lane.read_at, Reader(EVERY, frozenset(), set(), lane.read_at))
                reader.lanes.add(lane.lane)
        self._readers.readers = list(found.values())

    def _script(self, at: Mapping[int, Lane], max_messages: int, parts: list[tuple[Part, Rows]]) -> Script[list[Row]]:
        window = yield from windowing.window(None)
        if self.timeline is not None and window.timeline != self.timeline:
            self.moved = True
        self.timeline = window.timeline
        if self.moved:
            return []
        readers = self._readers
        epochs = {lane.lane: lane.epoch for lane in at.values()}

        def page(reader: Reader, cap: int, room: int, room_bytes: int) -> Script[Rows]:
            return grouping.page(
                *(self._member, epochs, self.lane_count, reader, window.snapshot, cap, room, room_bytes)
            )

        def read(reader: Reader, rows: Rows, full: bool, cap: int) -> None:
            seqs = [row[0] for row in rows]
            part = readers.advance(reader, window.snapshot, seqs, full=full, cap=cap, top=window.top)
            parts.append((part, rows))

        def merge() -> None:
            for reader in readers.meet():  # what it took in stands at its place from now on
                lanes = frozenset(reader.lanes)
                parts.append((Part(EVERY, lanes, (), reader.cursor, window.snapshot, reader.cursor), ()))

        limits = (max_messages, PAGE_BYTES_MAX)
        return (yield from sweep(readers, window.snapshot, (), limits, page, read, merge))

    def _deliver(self, at: Mapping[int, Lane], parts: list[tuple[Part, Rows]]) -> list[Delivery]:
        found: list[Delivery] = []
        for part, rows in parts:
            by_lane: dict[int, list[int]] = defaultdict(list)
            for (seq, message, malformed), row in zip(messages(rows), rows, strict=True):
                number = int(row[1])
                lane = at[number]
                if self._ours(lane):
                    by_lane[number].append(seq)
                    found.append(
                        Delivery(
                            message=message,
                            shard=lane.name,
                            position=seq,
                            generation=lane.epoch,
                            malformed=malformed,
                        )
                    )
            for number in part.lanes:
                if number in at and self._ours(at[number]):
                    at[number].read(part, by_lane[number])
        return found

    def _ours(self, lane: Lane) -> bool:
        """It may have been lost, or be given back, meanwhile."""
        return self._lanes.get(lane.lane) is lane and not lane.leaving
