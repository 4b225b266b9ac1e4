"""Where the source ``log`` stands: a snapshot and a number, and what may be said of a row by them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

EVERY = "*"
"""The topic group of all topics that have none of their own. No topic's name: those have no asterisk."""

NOTHING_SEEN = "1:1:"
"""A snapshot in which nothing is visible."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of PostgreSQL's, read from its text ``xmin:xmax:xip,…``. Every xid below ``xmax`` that is not in
    ``running`` had ended; of those that committed, the rows are visible."""

    xmin: int
    xmax: int
    running: frozenset[int]

    def shows(self, xid: int) -> bool:
        """Whether what the top-level transaction ``xid`` committed is visible."""
        return xid < self.xmax and xid not in self.running


@lru_cache(maxsize=64)
def snapshot(text: str) -> Snapshot:
    """``text`` as ``pg_current_snapshot()::text`` gives it."""
    xmin, xmax, running = text.split(":")
    return Snapshot(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the messages of one lane and topic group are settled.

    Every row with ``seq`` up to ``high_water`` that is visible in ``snapshot`` is settled. While late rows span several
    pages, ``window`` is the snapshot they are read by, and those up to ``position`` are settled as well.
    """

    snapshot: str = NOTHING_SEEN
    high_water: int = 0
    window: str | None = None
    position: int = 0

    def passed(self, seq: int, xid: int) -> bool:
        """Whether this row was settled by moving past it (late rows of an open window are not looked at)."""
        return seq <= self.high_water and snapshot(self.snapshot).shows(xid)


def settled(seq: int, xid: int, cursors: Collection[Cursor]) -> bool:
    """Whether every cursor has passed a row: then, and only then, retention may take it. ``seq <= high_water`` alone
    would take rows that were not committed yet when the cursor moved over their number. No cursors: nobody reads."""
    return bool(cursors) and all(cursor.passed(seq, xid) for cursor in cursors)


def left_behind(stored: Cursor, now: Cursor) -> bool:
    """Whether ``stored`` is worth a commit: it lacks a number, or says of transactions that they run which have all
    ended. Retention goes by both, and on a quiet system nothing else would tell it."""
    if now.high_water != stored.high_water or ":" not in stored.snapshot:  # SQLite needs no snapshots
        return now.high_water != stored.high_water
    seen = snapshot(stored.snapshot)
    return bool(seen.running) and snapshot(now.snapshot).xmin >= seen.xmax
