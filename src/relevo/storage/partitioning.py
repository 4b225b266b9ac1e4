"""Scripts of retention by partitions, on PostgreSQL: look, cut the outbox's tail, drop what is over whole.

The last partition has no end and is empty: whoever cuts makes room in front of it, so no insert ever fails for lack of
one. What can change between a look and a drop is looked at again under the lock, by functions of the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from relevo.script import Script, Statement

LOCK_MS = 200
"""How long a cut or drop waits for its lock; while it waits, writers wait behind it."""
ROOM = 10_000_000_000
"""Numbers of one partition. So many that no writer comes to the end of one that is never cut, and few enough for some
million cuts."""

Cut = Literal["cut", "promised", "empty", "locked"]
Drop = Literal["dropped", "locked", "unsettled", "unread", "held", "kept", "open", "gone"]


@dataclass(frozen=True, slots=True)
class Partition:
    """``from_seq`` is in it, ``to_seq`` is not. ``rows``: an estimate. Times in seconds since 1970, of the first and
    last row; ``None`` without any, and ``last_settled_s`` also when the last one is unsettled. ``unsettled``, ``held``,
    ``kept``: it has rows that are not handed over, that are held, or that a replay needs."""

    name: str
    from_seq: int
    to_seq: int
    rows: int
    size_bytes: int
    first_created_s: float | None
    last_created_s: float | None
    last_settled_s: float | None
    unsettled: bool
    held: bool
    kept: bool


@dataclass(frozen=True, slots=True)
class Scanned:
    """A page: ``last`` seq and ``seen`` rows; how many are ``unsettled``, how many settled too lately (``young``), and
    the youngest row's time."""

    last: int | None
    seen: int
    unsettled: int
    young: int
    newest_s: float | None


def listed() -> Script[list[Partition]]:
    """In order. The last two are open: the one that is written to, and the empty one behind it."""
    rows = yield Statement("partition.list")
    return [Partition(*row) for row in rows]


def scan(after: int, to_seq: int, before_s: float, limit: int) -> Script[Scanned]:
    """A page of rows behind ``after``, before ``to_seq``."""
    rows = yield Statement("partition.scan", {"after": after, "to_seq": to_seq, "before_s": before_s, "limit": limit})
    return Scanned(*rows[0])


def cut(room: int = ROOM) -> Script[Cut]:
    """One step. ``promised``: commit, ``prove``, and call again; ``locked``: nothing was changed."""
    rows = yield Statement("partition.cut", {"lock_ms": LOCK_MS, "room": room})
    said = rows[0][0]
    assert said in get_args(Cut)
    return said  # type: ignore[no-any-return]


def prove() -> Script[bool]:
    """Reads the whole tail once, under a lock that lets everybody work. False: it could not be had."""
    rows = yield Statement("partition.prove", {"lock_ms": LOCK_MS})
    return bool(rows[0][0] != "locked")


def drop(name: str, newest_s: float) -> Script[Drop]:
    """Drop it in this transaction, or say what speaks against it. Commit at once: it locks writers out."""
    rows = yield Statement("partition.drop", {"name": name, "newest_s": newest_s, "lock_ms": LOCK_MS})
    said = rows[0][0]
    assert said in get_args(Drop)
    return said  # type: ignore[no-any-return]


def inside() -> Script[tuple[int | None, float | None] | None]:
    """The session with the oldest transaction that has a lock on the outbox: process id and age in seconds."""
    rows = yield Statement("partition.inside")
    return (rows[0][0], rows[0][1]) if rows else None
