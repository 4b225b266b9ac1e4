"""Scripts of groups that read the outbox themselves: who is there, who reads which lane, how far each was settled.

A lane's row of a group holds its lease and its cursor, so every change of either is under one lock, with the epoch
checked. PostgreSQL only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from relevo.script import Rows, Script, Statement
from relevo.storage import appending
from relevo.storage.cursors import NOTHING_SEEN, Cursor
from relevo.storage.laning import owned
from relevo.storage.readers import Reader
from relevo.storage.sharing import fair_share
from relevo.storage.windowing import between, columns


@dataclass(frozen=True, slots=True)
class Member:
    """Who asks. ``lease_s`` in seconds."""

    group: str
    id: UUID
    topics: Sequence[str]
    host: str
    pid: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class View:
    """``kept``: lanes whose lease was extended. ``gained``: lane → (epoch, cursor). ``excess``: lanes that are due to
    others. ``idle``: topics that members who joined later read and this one does not, so that it gets no lane."""

    kept: Collection[int]
    gained: Mapping[int, tuple[int, Cursor]]
    excess: Collection[int]
    idle: Sequence[str]
    complete: bool
    """Nothing is on the move, as far as this member knows."""


@dataclass(frozen=True, slots=True)
class Group:
    """For people. ``age_s``, ``moved_age_s``: seconds since it was made, and since a cursor was stored. ``behind``:
    messages before it (the count stops near its limit), ``oldest_s`` the age of the oldest. ``high_water``: where the
    slowest lane stands."""

    name: str
    topics: Sequence[str]
    age_s: float
    members: int
    moved_age_s: float | None
    high_water: int
    behind: int
    oldest_s: float | None


def unknown(topics: Sequence[str]) -> Script[list[str]]:
    """Those of ``topics`` that were not made by name."""
    rows = yield Statement("groups.topics_known", {"topics": list(topics)})
    known = {row[0] for row in rows}
    return [topic for topic in topics if topic not in known]


def create_topics(topics: Sequence[str]) -> Script[list[str]]:
    """Make those that are missing; returns them."""
    rows = yield Statement("groups.create_topics", {"topics": list(topics)})
    made = {row[0] for row in rows}
    return [topic for topic in topics if topic in made]


def create(group: str, topics: Sequence[str], begin: Cursor | None) -> Script[None]:
    """Make the group, unless it is there. ``begin``: where all lanes stand; ``None``: before everything."""
    snapshot, high_water = (begin.snapshot, begin.high_water) if begin else (NOTHING_SEEN, 0)
    params = {"name": group, "topics": list(topics), "snapshot": snapshot, "high_water": high_water}
    yield Statement("groups.create", params)


def look(member: Member, lanes: Mapping[int, int], lane_count: int) -> Script[View | None]:
    """Say that ``member`` lives, extend the leases of its ``lanes`` (lane → epoch), take what is due to it and free.
    ``None``: there is no such group (any more)."""
    name = {"name": member.group}
    told = {"member": member.id, "topics": list(member.topics), "host": member.host, "pid": member.pid}
    yield Statement("groups.bury", name)
    if not (yield Statement("groups.join", {**name, **told, "lease_s": member.lease_s})):
        return None
    rows = yield Statement("groups.living", name)
    living = {UUID(str(row[0])): frozenset(row[1]) for row in rows}
    renewed = yield Statement("groups.renew", {**name, **owned(member.id, lanes), "lease_s": member.lease_s})
    kept = {int(row[0]) for row in renewed}
    wanted, idle = share(member.id, living, lane_count)
    gained: dict[int, tuple[int, Cursor]] = {}
    if missing := wanted - kept:
        took = {"wanted": sorted(missing), "holder": member.id, "lease_s": member.lease_s}
        for lane, epoch, *cursor in (yield Statement("groups.acquire", {**name, **took})):
            gained[int(lane)] = (int(epoch), Cursor(*cursor))
    return View(kept, gained, kept - wanted, idle, wanted == kept | gained.keys())


def share(me: UUID, living: Mapping[UUID, frozenset[str]], lane_count: int) -> tuple[set[int], list[str]]:
    """The lanes due to ``me``, and the topics for want of which it gets none. What a member does not read would be
    passed by in its lanes; so while versions with other topics run side by side, only those share that read all the
    topics of the one that joined last (``living`` is in that order)."""
    newest = living[list(living)[-1]] if living else frozenset[str]()
    able = [member for member, topics in living.items() if newest <= topics]
    if me not in able:
        return set(), sorted(newest - living.get(me, frozenset()))
    return fair_share(me, able, lane_count), []


def save(
    group: str, holder: UUID, lanes: Mapping[int, int], cursors: Mapping[int, Cursor], timeline: int
) -> Script[tuple[int, set[int]]]:
    """Store ``cursors`` of lanes that are still ours. Returns the timeline the server is on, and the lanes whose cursor
    was stored: none of them, if that is another than ``timeline``."""
    touched = {lane: lanes[lane] for lane in sorted(cursors)}
    at = columns([cursors[lane] for lane in touched])
    rows = yield Statement("groups.save", {"name": group, **owned(holder, touched), **at, "timeline": timeline})
    return int(rows[0][0]), {int(row[1]) for row in rows if row[1] is not None}


def release(group: str, holder: UUID, lanes: Mapping[int, int]) -> Script[None]:
    """Give lanes back, so that the next owner need not wait for the lease."""
    yield Statement("groups.release", {"name": group, **owned(holder, dict(sorted(lanes.items())))})


def leave(group: str, holder: UUID) -> Script[None]:
    yield Statement("groups.leave", {"name": group, "member": holder})


def page(
    member: Member,
    lanes: Mapping[int, int],
    lane_count: int,
    reader: Reader,
    window: str,
    cap: int,
    room: int,
    size: int,
) -> Script[Rows]:
    """As ``windowing.page``, for a group and its topics: whatever the relay made of a row, it is read."""
    params: dict[str, Any] = {
        **owned(member.id, {lane: lanes[lane] for lane in sorted(reader.lanes) if lane in lanes}),
        "name": member.group,
        "lane_count": lane_count,
        "topics": list(member.topics),
        "without": [],
        "settled": True,
        "cap": cap,
        "messages_max": room,
        "bytes_max": size,
    }
    between_them = between(reader.cursor, reader.cursor.window or window)
    return (yield Statement("groups.page", {**params, **between_them}))


def lag(topics: Sequence[str], cursors: Mapping[int, Cursor], cap: int) -> Script[dict[int, int]]:
    """By lane, how many messages its cursor has not passed; the count stops near ``cap``."""
    params = {"lanes": list(cursors), **columns(list(cursors.values())), "topics": list(topics), "cap": cap}
    rows = yield Statement("groups.lag", params)
    return dict.fromkeys(cursors, 0) | {int(lane): int(count) for lane, count in rows}


def append(rows: Sequence[Mapping[str, Any]]) -> Script[None]:
    """Append messages, as ``appending.row`` makes them, in the order given."""
    for start in range(0, len(rows), appending.ROWS_MAX["postgresql"]):
        chunk = rows[start : start + appending.ROWS_MAX["postgresql"]]
        if len(chunk) == 1:
            yield Statement("append.one", chunk[0])
        else:
            yield Statement("append.many", {name: [each[name] for each in chunk] for name in chunk[0]})


def append_nothing() -> Script[None]:
    """Raises as an append would: no rights, no server, a lock that is not to be had."""
    yield Statement("groups.append_nothing", {"event_id": uuid4()})


def history_end() -> Script[int]:
    rows = yield Statement("groups.history_end")
    return int(rows[0][0])


def history_begin(since: datetime) -> Script[int]:
    """A ``seq`` before all rows that came in at ``since`` or later."""
    rows = yield Statement("groups.history_begin", {"since": since})
    return int(rows[0][0])


def history(topics: Sequence[str], after: int, until: int, limit: int) -> Script[Rows]:
    """Rows of ``(seq, *message columns)`` in ``seq`` order."""
    return (yield Statement("groups.history", {"topics": list(topics), "after": after, "until": until, "limit": limit}))


def names() -> Script[list[str]]:
    return [row[0] for row in (yield Statement("groups.names"))]


def listed(cap: int) -> Script[list[Group]]:
    """All groups, by name."""
    groups = []
    for name, topics, age_s, members, moved_age_s, high_water in (yield Statement("groups.listed")):
        params = {"name": name, "topics": list(topics), "cap": cap}
        behind, oldest_s = (yield Statement("groups.behind", params))[0]
        groups.append(
            Group(name, tuple(topics), age_s, int(members), moved_age_s, int(high_water or 0), int(behind), oldest_s)
        )
    return groups


def drop(group: str) -> Script[bool]:
    """Forget a group and where it stands. False: there is none, or one of its members lives."""
    return bool((yield Statement("groups.drop", {"name": group})))
