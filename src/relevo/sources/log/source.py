"""The source ``log``: reads an append-only outbox by position. No write per event, no dead rows.

FAILURES rows 1–3 and 6: a row that commits late is found by its transaction, waits for nobody and holds nobody up, and
what was rolled back costs nothing. Row 5: no transaction is open while the broker is waited for. Rows 11 and 12: pages
join the lane rows, settles lock them, cursors are compared before they are moved.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from uuid import UUID

from relevo.errors import UnreachableError
from relevo.ports.database import Database
from relevo.ports.source import Disposition, Settled, SourceCapabilities, Taken
from relevo.script import Rows, Script
from relevo.sources.log.windows import NO_CAP, Name, Part, Reader, Windows
from relevo.storage import laning, marking, windowing
from relevo.storage.cursors import EVERY, Cursor, left_behind
from relevo.storage.readers import is_full, sweep
from relevo.storage.rows import page_reader

NOTHING = Taken((), (), (), exhausted=True)

BRING_UP_S = 1.0
"""A settle stores the cursors of the lanes it had rows of. So often at most it brings those of the others up as well: a
restart then finds them close together, and retention can follow."""
REST_S = 5.0
"""How long a reader without anything to settle lets its stored cursors stand behind: storing them is a commit."""


class LogSource:
    """The ``Source`` port on snapshot windows. A page may hold rows of several readers, each in ``seq`` order: within a
    lane and topic the order is that of ``seq``."""

    capabilities = SourceCapabilities(lanes=True, history=True)

    def __init__(self, database: Database, holder: UUID, lane_count: int, *, lease_s: float) -> None:
        self._database = database
        self._holder = holder
        self._lane_count = lane_count
        self._idle_timeout_s = lease_s / 2
        self._lanes: dict[int, int] = {}
        self._windows = Windows()
        self._versions: dict[Name, str] = {}
        self._stored: dict[Name, Cursor] = {}
        self._timeline: int | None = None
        self._in_flight: dict[int, list[Part]] = {}
        self._brought_up = 0.0
        self._stale = False
        self._messages = page_reader(database.dialect)
        self._fills_buckets = database.dialect == "sqlite"  # its view cannot compute SHA-256

    async def assign(self, lanes: Mapping[int, int]) -> None:
        """Whatever was in memory is forgotten: after an error nobody knows which commit came through."""
        self._lanes = dict(lanes)
        self._timeline = None
        await self._load()

    async def take(self, max_messages: int, max_bytes: int, *, without_topics: Collection[str] = ()) -> Taken:
        if not self._lanes:
            return NOTHING
        if self._stale and not self._windows.flying:
            await self._load()
        windows, paused = self._windows, frozenset(without_topics)
        if self._stale or windows.behind or windows.splits(paused) or windows.joins(paused)[1]:
            if windows.flying:
                return NOTHING  # the relay lets what is in flight land before it asks again
            if windows.behind:
                windows.rewind()
            await self._regroup(paused)
            windows = self._windows
        if self._fills_buckets and await self._database.run(marking.unbucketed(), read_only=True):
            await self._database.run(marking.fill_buckets())
        parts: list[Part] = []
        script = self._read(windows, paused, max_messages, max_bytes, parts)
        try:
            rows = await self._database.run(script, read_only=True, by_index=True)
        except BaseException:
            for part in reversed(parts):
                windows.release(part)
            raise
        if windows is not self._windows or not rows:
            await self._bring_up_at_rest()
            return NOTHING
        messages, unreadable = self._messages(rows)
        exhausted = not windows.behind and all(reader.exhausted for reader in windows.readers)
        taken = Taken([row[0] for row in rows], [row[1] for row in rows], messages, exhausted, unreadable)
        self._in_flight[id(taken)] = parts
        return taken

    def _read(
        self, windows: Windows, paused: frozenset[str], room: int, room_bytes: int, parts: list[Part]
    ) -> Script[Rows]:
        """The window's snapshot, then a page, all on one connection: each statement a transaction of its own. A reader
        that has little leaves room for the next. Who follows, alone, asks for both at once."""

        def page(reader: Reader, cap: int, room: int, room_bytes: int) -> Script[Rows]:
            reading = self._reading(reader, window.snapshot, cap)
            return windowing.page(
                *(self._database.dialect, self._holder, self._lanes, self._lane_count, reading, room, room_bytes)
            )

        def read(reader: Reader, rows: Rows, full: bool, cap: int) -> None:
            seqs = [row[0] for row in rows]
            part = windows.read(reader, window.snapshot, seqs, full=full, cap=cap, top=window.top)
            if rows:
                parts.append(part)

        follower = windows.follower() if self._database.dialect == "postgresql" else None
        if follower is not None and follower.group not in paused:
            reading = self._reading(follower, None, NO_CAP)
            window, rows = yield from windowing.look(
                *(self._holder, self._lanes, self._lane_count, reading, room, room_bytes, self._timeline)
            )
            self._timeline = window.timeline
            read(follower, rows, is_full(rows, room, room_bytes), NO_CAP)
            return rows
        window = yield from windowing.window(self._timeline)
        self._timeline = window.timeline
        return (yield from sweep(windows, window.snapshot, paused, (room, room_bytes), page, read, windows.merge))

    async def settle(self, taken: Taken, dispositions: Mapping[int, Disposition]) -> Settled:
        if not dispositions:
            return await self.settle_all((taken,))
        return await self._settle_page(taken, dispositions)

    async def settle_all(self, pages: Sequence[Taken]) -> Settled:
        if not any(part.void for page in pages for part in self._in_flight[id(page)]):
            with self._landing(pages) as parts:
                return await self._move(parts, [lane for page in pages for lane in page.lanes])
        settled = [await self._settle_page(page, {}) for page in pages]
        lost = {lane for each in settled for lane in each.lost}
        return Settled(sum(each.count for each in settled), lost, ())

    async def _settle_page(self, taken: Taken, dispositions: Mapping[int, Disposition]) -> Settled:
        with self._landing((taken,)) as parts:
            script = self._settle(parts, taken, dispositions)
            return await self._database.run(script, idle_timeout_s=self._idle_timeout_s)

    @contextlib.contextmanager
    def _landing(self, pages: Sequence[Taken]) -> Iterator[list[Part]]:
        try:
            yield [part for page in pages for part in self._in_flight[id(page)]]
        except BaseException:
            self._stale = True  # whether it was committed, the database knows
            for page in reversed(pages):
                self._release(page)
            raise
        finally:
            for page in pages:
                self._in_flight.pop(id(page), None)

    async def _move(self, parts: Sequence[Part], lanes: Sequence[int]) -> Settled:
        """Everything was published: move the cursors, in one statement. Of several parts of a reader, to the last."""
        bring_up = time.monotonic() - self._brought_up > BRING_UP_S
        touched = set(lanes)
        cursors = {
            (lane, part.group): part.after
            for part in parts
            for lane in (part.lanes if bring_up else part.lanes & touched)
            if lane in self._lanes
        }
        await self._save(cursors)
        if bring_up:
            self._brought_up = time.monotonic()
        for part in parts:
            self._windows.settle(part, len(part.seqs))
        lost = {lane for lane, group in cursors if self._stored.get((lane, group)) != cursors[lane, group]}
        self._windows.forget(lost)
        return Settled(sum(lane not in lost for lane in lanes) if lost else len(lanes), lost, ())

    def _settle(self, parts: Sequence[Part], taken: Taken, dispositions: Mapping[int, Disposition]) -> Script[Settled]:
        """Not everything was: hold and skip under the locks, move each cursor to the first row that is not settled, and
        mark what was published beyond it. One transaction; held copies commit with the cursor that moves past them."""
        touched = {lane: self._lanes[lane] for lane in sorted(set(taken.lanes)) if lane in self._lanes}
        ours = yield from laning.lock(self._holder, touched)
        yield from windowing.check(self._timeline or 0)
        fates = marking.fates(taken, dispositions, ours)
        aside, live = yield from marking.put_aside(fates, taken)
        back = {taken.seqs[index] for index, disposition in dispositions.items() if disposition.action == "back"}
        back |= {taken.seqs[index] for name in live for index in fates.held[name]}
        lane_of = dict(zip(taken.seqs, taken.lanes, strict=True))
        cursors: dict[Name, Cursor] = {}
        passed: set[int] = set()
        for part in parts:
            stop = (at for at, seq in enumerate(part.seqs) if seq in back and lane_of[seq] in ours)
            count = next(stop, len(part.seqs))
            cursor = self._windows.settle(part, count)
            if cursor is not None:
                passed |= set(part.seqs[:count])
                cursors |= {(lane, part.group): cursor for lane in {lane_of[seq] for seq in part.seqs} & ours}
        beyond = [seq for seq in fates.published if seq not in passed]
        if beyond:
            yield from marking.mark_published(beyond)
        lost = set(taken.lanes) - ours
        if cursors:
            versions = yield from windowing.save(
                self._holder, self._lanes, self._timeline or 0, cursors, self._versions
            )
            if versions.keys() != cursors.keys():
                raise UnreachableError("a cursor moved without our knowing: it is loaded again")
            self._versions |= versions
            self._stored |= cursors
        self._windows.forget(lost)
        return Settled(len(fates.published) + aside, lost, live)

    async def release(self, taken: Taken) -> None:
        self._release(taken)

    def _release(self, taken: Taken) -> None:
        for part in reversed(self._in_flight.pop(id(taken), ())):
            self._windows.release(part)

    async def aclose(self) -> None:
        """Leave the cursors where we stand, so that the next owner finds them together."""
        if self._lanes and not (self._stale or self._windows.flying or self._windows.behind):
            await self._bring_up()
        self._in_flight.clear()

    async def _load(self) -> None:
        self._windows, self._in_flight = Windows(), {}
        self._stored, self._versions = (
            await self._database.run(windowing.load(self._lanes)) if self._lanes else ({}, {})
        )
        self._windows.assign(self._stored)
        self._stale = False

    async def _regroup(self, paused: frozenset[str]) -> None:
        """Split paused topics off where their lanes stand, and give up groups that have caught up."""
        added = self._windows.splits(paused)
        rest, gone = self._windows.joins(paused)
        if not added and not gone:
            return
        await self._database.run(
            windowing.regroup(
                self._holder,
                self._lanes,
                await self._known_timeline(),
                added=added,
                rest={(lane, EVERY): cursor for lane, cursor in rest.items()},
                gone=gone,
                versions=self._versions,
            ),
            idle_timeout_s=self._idle_timeout_s,
        )
        await self._load()

    async def _known_timeline(self) -> int:
        if self._timeline is None:
            self._timeline = (await self._database.run(windowing.window(None), read_only=True)).timeline
        return self._timeline

    async def _bring_up_at_rest(self) -> None:
        if self._windows.flying or self._windows.behind or time.monotonic() - self._brought_up < REST_S:
            return
        await self._bring_up()

    async def _bring_up(self) -> None:
        self._brought_up = time.monotonic()
        behind = {
            name: cursor
            for name, cursor in self._windows.settled.items()
            if name[0] in self._lanes and left_behind(self._stored[name], cursor)
        }
        if behind:
            await self._save(behind)

    async def _save(self, cursors: Mapping[Name, Cursor]) -> None:
        script = windowing.save(self._holder, self._lanes, await self._known_timeline(), cursors, dict(self._versions))
        versions = await self._database.run(script, single=True)
        self._versions |= versions
        self._stored |= {name: cursors[name] for name in versions}

    def _reading(self, reader: Reader, s2: str | None, cap: int) -> windowing.Reading:
        return windowing.Reading(
            tuple(reader.lanes),
            None if reader.group == EVERY else reader.group,
            reader.without,
            reader.cursor,
            reader.cursor.window or s2,
            cap,
        )
