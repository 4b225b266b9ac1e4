"""Scripts of the source ``log``: load cursors, read a page, settle by moving them under the lanes' locks.

Tables hold no state of a row that was published; a row that was held or skipped, or published beyond one that was not,
carries its marker, so that it is never read again although the cursor stands before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from relevo.errors import UnreachableError
from relevo.ports.database import Dialect
from relevo.script import Row, Rows, Script, Statement
from relevo.storage import laning
from relevo.storage.cursors import EVERY, Cursor, snapshot
from relevo.storage.laning import owned

Name = tuple[int, str]
"""A lane and a topic group."""

Versions = Mapping[Name, str]
"""What each stored cursor is known as; saving one that is another by now does nothing."""


@dataclass(frozen=True, slots=True)
class Window:
    """``snapshot``: to read up to. ``top``: the newest row in it. ``timeline``: of the server that answered."""

    snapshot: str
    top: int
    timeline: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Whose rows one page holds, from where to where. ``topic``: this one only; without it all but ``without``.
    ``window``: the snapshot to read up to, ``None`` for what ``look`` finds now."""

    lanes: Collection[int]
    topic: str | None
    without: Collection[str]
    cursor: Cursor
    window: str | None
    cap: int


def load(lanes: Collection[int]) -> Script[tuple[dict[Name, Cursor], dict[Name, str]]]:
    """The cursors of ``lanes`` and their versions. A lane without one gets one that stands before everything."""
    rows = yield Statement("log.load", {"lanes": sorted(lanes)})
    missing = set(lanes) - {row[0] for row in rows if row[1] == EVERY}
    if missing:
        yield Statement("log.begin_lanes", {"lanes": sorted(missing)})
        rows = yield Statement("log.load", {"lanes": sorted(lanes)})
    cursors = {(lane, group): Cursor(*cursor) for lane, group, *cursor, _ in rows}
    return cursors, {(lane, group): version for lane, group, *_, version in rows}


def window(known: int | None) -> Script[Window]:
    """A snapshot to read up to. ``known``: the timeline that everything in memory belongs to. Raises
    ``UnreachableError`` on a standby and after a failover: forget what was read, load the cursors again."""
    rows = yield Statement("log.window")
    return _window(rows[0], known)


def page(
    dialect: Dialect, holder: UUID, lanes: Mapping[int, int], lane_count: int, reading: Reading, room: int, room_b: int
) -> Script[Rows]:
    """Rows of ``(seq, lane, *message columns, bytes so far)``: up to ``room`` of them and ``room_b`` payload bytes, at
    least one. Run it on the connection that ``window`` ran on, outside of a transaction, ``by_index``."""
    return (yield Statement("log.page", _page_of(dialect, holder, lanes, lane_count, reading, room, room_b)))


def look(
    holder: UUID,
    lanes: Mapping[int, int],
    lane_count: int,
    reading: Reading,
    room: int,
    room_b: int,
    known: int | None,
) -> Script[tuple[Window, Rows]]:
    """``window``, and the ``page`` up to it, in one statement, for a reading without a window. PostgreSQL only: the
    snapshot is the statement's own, so the page is whole in it. Raises as ``window``, runs as ``page``."""
    params = _page_of("postgresql", holder, lanes, lane_count, reading, room, room_b)
    rows = yield Statement("log.look", params)
    at = _window(rows[0][-3:], known)
    return at, [row[:-3] for row in rows if row[0] is not None]


def _page_of(
    dialect: Dialect, holder: UUID, lanes: Mapping[int, int], lane_count: int, reading: Reading, room: int, room_b: int
) -> dict[str, Any]:
    params: dict[str, Any] = {
        **owned(holder, {lane: lanes[lane] for lane in sorted(reading.lanes) if lane in lanes}),
        "lane_count": lane_count,
        "without": sorted(reading.without),
        "high_water": reading.cursor.high_water,
        "cap": reading.cap,
        "messages_max": room,
        "bytes_max": room_b,
    }
    if dialect == "sqlite":
        return {**params, "topic": reading.topic}
    topics = None if reading.topic is None else [reading.topic]
    return {**params, **between(reading.cursor, reading.window), "topics": topics, "settled": False}


def between(cursor: Cursor, window: str | None) -> dict[str, Any]:
    """Parameters of the part ``log.found``: what lies between ``cursor`` and the snapshot ``window``."""
    since = snapshot(cursor.snapshot)
    return {
        "position": cursor.position,
        "high_water": cursor.high_water,
        "running": sorted(since.running),
        "xmax": str(since.xmax),
        "window": window,
    }


def save(
    holder: UUID, lanes: Mapping[int, int], timeline: int, cursors: Mapping[Name, Cursor], versions: Versions
) -> Script[dict[Name, str]]:
    """Store ``cursors``, one statement, which locks their lanes and checks epochs and versions. Returns the new
    versions of those that were stored; the rest is not ours. Raises ``UnreachableError`` after a failover."""
    touched = {lane: lanes[lane] for lane in sorted({lane for lane, _ in cursors}) if lane in lanes}
    params = {
        **owned(holder, touched),
        **_columns(cursors),
        "versions": [versions.get(name, "") for name in cursors],
        "timeline": timeline,
    }
    rows = yield Statement("log.save", params)
    if rows:
        _same(rows[0][0], timeline)
    return {(lane, group): version for _, lane, group, version in rows if lane is not None}


def pending(cap: int) -> Script[tuple[int, float | None]]:
    """For people: how many messages wait (at least; the count stops near ``cap``), and the age of the oldest."""
    rows = yield Statement("log.pending", {"cap": cap})
    return int(rows[0][0]), rows[0][1]


def check(timeline: int) -> Script[None]:
    """Raise ``UnreachableError`` if this transaction runs on another timeline than what it settles was read on."""
    rows = yield Statement("log.here")
    _same(rows[0][0], timeline)


def regroup(
    holder: UUID,
    lanes: Mapping[int, int],
    timeline: int,
    *,
    added: Mapping[Name, Cursor],
    rest: Mapping[Name, Cursor],
    gone: Sequence[Name],
    versions: Versions,
) -> Script[bool]:
    """Give topics groups of their own, or take them away again, in the surrounding transaction. False, and nothing
    changed, if a lane or cursor is not ours any more."""
    touched = {lane: lanes[lane] for lane, _ in [*added, *gone] if lane in lanes}
    ours = yield from laning.lock(holder, touched)
    if ours != touched.keys():
        return False
    if rest:
        saved = yield from save(holder, lanes, timeline, rest, versions)
        if saved.keys() != rest.keys():
            raise UnreachableError("a cursor moved without our knowing: it is loaded again")
    if added:
        yield Statement("log.add_groups", _columns(added))
    if gone:
        yield Statement(
            "log.drop_groups",
            {"cursor_lanes": [lane for lane, _ in gone], "groups": [group for _, group in gone]},
        )
    return True


def _columns(cursors: Mapping[Name, Cursor]) -> dict[str, Any]:
    """Cursors as arrays; lanes at one place share an entry, since a snapshot's text may be long."""
    return {
        "cursor_lanes": [lane for lane, _ in cursors],
        "groups": [group for _, group in cursors],
        **columns(list(cursors.values())),
    }


def columns(cursors: Sequence[Cursor]) -> dict[str, Any]:
    """As arrays: ``places`` says for each which of the distinct ones it is."""
    distinct = list(dict.fromkeys(cursors))
    places = {cursor: place for place, cursor in enumerate(distinct, 1)}
    return {
        "places": [places[cursor] for cursor in cursors],
        "snapshots": [cursor.snapshot for cursor in distinct],
        "high_waters": [cursor.high_water for cursor in distinct],
        "windows": [cursor.window or "" for cursor in distinct],
        "positions": [cursor.position for cursor in distinct],
    }


def _window(row: Row, known: int | None) -> Window:
    at = Window(*row)
    if at.timeline == -1:
        raise UnreachableError("this server is a standby: its snapshots do not show who is writing")
    _same(at.timeline, known)
    return at


def _same(timeline: int, known: int | None) -> None:
    if known is not None and timeline != known:
        raise UnreachableError(
            f"the database moved from timeline {known} to {timeline} (a failover): what was read is forgotten, and the "
            "cursors are loaded again"
        )
