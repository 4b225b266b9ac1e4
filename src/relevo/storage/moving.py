"""Scripts of a move between the sources ``mark`` and ``log``: what it is safe to do, and when.

What ``wal`` needs besides is in ``moving_wal``.

Three facts carry it. A page of either source leaves out what has a marker, so ``mark`` → ``log`` needs no more than one
snapshot and a number below the oldest row without one. What a cursor has passed stays passed, so ``log`` → ``mark``
sets markers while relays work. And the source changes in a transaction that holds every lane's row, with no lane owned
by anybody since the last marker was set: the epochs prove it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from relevo.errors import LostOwnershipError
from relevo.ports.database import Dialect
from relevo.script import Rows, Script, Statement

KIND = "source.move"
"""Of the job, and of the audit row."""


@dataclass(frozen=True, slots=True)
class Stands:
    """``source``: what the tables are read by. ``moving``: relays let go of their lanes, and take none."""

    source: str
    moving: bool
    moved_from: str | None


@dataclass(frozen=True, slots=True)
class LiveRelay:
    """``source``: what it reads with; ``None``: it is of a version that does not say so, and knows nothing of moves."""

    name: str
    source: str | None
    lanes: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A move that was begun and has not ended. ``done``: rows that got their marker."""

    job_id: str
    origin: str
    target: str
    done: int
    total: int | None
    age_s: float


@dataclass(frozen=True, slots=True)
class Marked:
    """A page: the ``last`` row looked at (``None``: there was none), how many were ``seen`` and ``marked``."""

    last: int | None
    seen: int
    marked: int


def stands() -> Script[Stands]:
    """One cheap read."""
    rows = yield Statement("moving.stands")
    source, moving, moved_from = rows[0]
    return Stands(source, bool(moving), moved_from)


def close(origin: str, lease_s: float) -> Script[bool]:
    """Keep relays from their lanes for ``lease_s`` seconds from now. False: the source is not ``origin`` any more."""
    return bool((yield Statement("moving.close", {"origin": origin, "lease_s": lease_s})))


def reopen() -> Script[None]:
    """Let relays have their lanes again, at once."""
    yield Statement("moving.open")


def lanes() -> Script[tuple[Mapping[int, int], int]]:
    """The epochs of all lanes, and how many lanes somebody owns."""
    rows = yield Statement("moving.lanes")
    return {int(row[0]): int(row[1]) for row in rows}, sum(bool(row[2]) for row in rows)


def relays() -> Script[list[LiveRelay]]:
    """The relays that live, by name."""
    rows = yield Statement("moving.relays")
    return [LiveRelay(*row) for row in rows]


def mark(dialect: Dialect, after: int, limit: int) -> Script[Marked]:
    """Give what was passed on a page of rows behind ``after`` its marker."""
    params = {"after": after, "limit": limit}
    if dialect != "sqlite":
        rows = yield Statement("moving.mark", params)
        return Marked(*rows[0])
    rows = yield Statement("moving.page", params)
    last, seen = rows[0]
    marked = (yield Statement("moving.mark", {"after": after, "last": last})) if seen else ()
    return Marked(last, seen, len(marked))


def rebase(limit: int) -> Script[int]:
    """Give rows of another cluster, restored from a dump, an xid of the past; returns how many. Under ``mark`` alone,
    which does not look at xids."""
    return len((yield Statement("moving.rebase", {"limit": limit})))


def switch(
    dialect: Dialect, origin: str, target: str, epochs: Mapping[int, int], place: tuple[str, int] | None = None
) -> Script[None]:
    """Change the source, in the surrounding transaction. Raises ``LostOwnershipError``, and nothing may be committed,
    if anybody owned a lane since ``epochs`` were read, or if relays may have their lanes again by now.

    ``place``: where cursors begin, a snapshot and a number; without it by the markers, as from ``mark``."""
    unowned((yield Statement("moving.lock_lanes")), epochs)
    if target != "mark":
        if dialect == "postgresql":
            yield Statement("meta.write_system")
        if (yield Statement("moving.rebase", {"limit": 1})):
            raise LostOwnershipError("rows of another cluster came in between")
        if place is None:
            rows = yield Statement("moving.place")
            place = rows[0][0], int(rows[0][1])
        yield Statement("moving.forget_cursors")
        yield Statement("moving.cursors", {"snapshot": place[0], "high_water": place[1]})
    if not (yield Statement("moving.switch", {"origin": origin, "target": target})):
        raise LostOwnershipError("the move took longer than relays may be kept from their lanes")
    yield Statement("moving.release")


def unowned(rows: Rows, epochs: Mapping[int, int]) -> None:
    """Raises ``LostOwnershipError`` if by ``rows``, of all lanes, anybody owned one since ``epochs`` were read."""
    if {int(row[0]): int(row[1]) for row in rows} != dict(epochs) or any(row[2] for row in rows):
        raise LostOwnershipError("a relay took lanes while the source was about to change")


def begun() -> Script[Begun | None]:
    """The move under way, or left behind by somebody who was cut off."""
    rows = yield Statement("moving.begun")
    if not rows:
        return None
    job_id, text, done, total, age_s = rows[0]
    way = json.loads(text)
    return Begun(str(job_id), str(way["from"]), str(way["to"]), int(done), total, float(age_s))


def same_system() -> Script[bool]:
    """Whether the tables belong to this cluster, as far as this role may see."""
    return bool((yield Statement("moving.same_system"))[0][0])


def size() -> Script[tuple[int, int]]:
    """Rows of the outbox (an estimate on PostgreSQL), and its partitions."""
    rows = yield Statement("moving.size")
    return int(rows[0][0]), int(rows[0][1])
