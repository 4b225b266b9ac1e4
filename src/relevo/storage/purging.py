"""Scripts of retention: one bounded batch per call, each for a transaction of its own.

Never touched: what is unsettled, what is held, what a job still needs (``{keep}``), the inbox inside its window, and
effects that are not done.
Batches walk a primary key and skip rows somebody else has locked, so no statement is long and none waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from relevo.ports.database import Dialect
from relevo.script import Script, Statement

Mode = Literal["count", "delete", "archive"]

AHEAD_S = 86_400.0
"""How far a writer's clock may be ahead of the database's and still be looked at in order."""


@dataclass(frozen=True, slots=True)
class Batch:
    """``seen``: rows looked at. ``gone``: rows removed (or, counting, that would be). ``last``: where to go on."""

    seen: int
    gone: int
    last: int
    over: bool
    """Nothing further can be old enough."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in one consumer's part of the inbox, which is walked in the order of its ids. They are what the database
    gives: SQLite keeps any value that was written by hand."""

    event_id: Any = str(UUID(int=0))
    generation: Any = -1


@dataclass(frozen=True, slots=True)
class InboxBatch:
    seen: int
    gone: int
    last: Place


def now() -> Script[float]:
    """The database's clock, in seconds since 1970 UTC."""
    rows = yield Statement("purge.now")
    return float(rows[0][0])


def outbox(dialect: Dialect, mode: Mode, before_s: float, after: int, limit: int) -> Script[Batch]:
    """Look at ``limit`` rows behind ``after``; remove those settled before ``before_s`` (seconds since 1970)."""
    params = {"before_s": before_s, "after": after, "limit": limit}
    name = "purge.count" if mode == "count" or dialect == "sqlite" else f"purge.{mode}"
    rows = yield Statement(name, params)
    last, seen, gone, young = rows[0]
    if dialect == "sqlite" and mode != "count" and gone:
        if mode == "archive":
            yield Statement("purge.archive", {"before_s": before_s, "after": after, "last": last})
        yield Statement("purge.delete", {"before_s": before_s, "after": after, "last": last})
    return Batch(int(seen), int(gone), int(last or after), int(seen) < limit or bool(young))


def effects(dialect: Dialect, mode: Mode, before_s: float, after: int, limit: int) -> Script[Batch]:
    """As ``outbox``, for effects that were done before ``before_s``."""
    params = {"before_s": before_s, "after": after, "limit": limit}
    name = "purge.effects_count" if mode == "count" or dialect == "sqlite" else "purge.effects_delete"
    rows = yield Statement(name, params)
    last, seen, gone, young = rows[0]
    if dialect == "sqlite" and mode != "count" and gone:
        yield Statement("purge.effects_delete", {"before_s": before_s, "after": after, "last": last})
    return Batch(int(seen), int(gone), int(last or after), int(seen) < limit or bool(young))


def consumers() -> Script[list[str]]:
    """The names in the inbox."""
    rows = yield Statement("purge.consumers")
    return [row[0] for row in rows]


def inbox(dialect: Dialect, mode: Mode, consumer: str, before_s: float, after: Place, limit: int) -> Script[InboxBatch]:
    """As ``outbox``, for one consumer's rows processed before ``before_s``."""
    params = {
        "consumer": consumer,
        "before_s": before_s,
        "after": after.event_id,
        "generation": after.generation,
        "limit": limit,
    }
    name = "purge.inbox_count" if mode == "count" or dialect == "sqlite" else "purge.inbox_delete"
    rows = yield Statement(name, params)
    event_id, generation, seen, gone = rows[0]
    last = after if event_id is None else Place(event_id, generation)
    if dialect == "sqlite" and mode != "count" and gone:
        yield Statement(
            "purge.inbox_delete",
            {
                "consumer": consumer,
                "before_s": before_s,
                "after": after.event_id,
                "generation": after.generation,
                "last": last.event_id,
                "last_generation": last.generation,
            },
        )
    return InboxBatch(int(seen), int(gone), last)


def past_the_young(last: Place, before_s: float, now_s: float) -> Place:
    """Where to go on in the inbox after ``last``. Ids are UUIDv7 as a rule, so they grow with time: once they are
    younger than the window, everything up to now is, and the walk goes on behind it, where ids of other kinds stand."""
    try:
        event_id = UUID(last.event_id)
    except (ValueError, TypeError, AttributeError):
        return last
    made_s = (event_id.int >> 80) / 1000
    if event_id.version != 7 or not before_s < made_s < now_s + AHEAD_S:
        return last
    return Place(str(UUID(int=int((now_s + AHEAD_S) * 1000) << 80)))
