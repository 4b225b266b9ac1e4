"""Scripts of the inbox role: has this consumer processed this message, and say that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from relevo.ids import uuid7
from relevo.script import Ids, Script, Statement

InboxOutcome = Literal["done", "skipped", "discarded"]

LOCK_MS: Final = 500
"""How long Relevo's own statements in a handler's transaction wait for a lock. Above what neighbours need, and below
PostgreSQL's ``deadlock_timeout`` of 1 s."""
LOOK_MS: Final = 10
"""The same, where it is only looked whether another transaction is there."""

PAGEFUL: Final = 100
"""Rows of the inbox that take a page of 8 kB, at the least."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """For a handler's transaction on PostgreSQL. ``lock_ms``: how long Relevo's own statements wait for a lock.
    ``idle_ms``: when the server ends it because nothing comes; 0: as the server is set."""

    lock_ms: int = LOCK_MS
    idle_ms: int = 0

    def params(self) -> dict[str, str]:
        return {"lock_ms": str(self.lock_ms), "idle_ms": str(self.idle_ms)}


def insert(consumer: str, event_id: UUID, *, outcome: InboxOutcome = "done", generation: int = 0) -> Script[str | None]:
    """Write the inbox row; ``None`` when the message was processed before. When the row is ours: the transaction it is
    written in, as PostgreSQL calls it (on SQLite any text).

    Waits for a twin that is under way on another connection. Never leaves an aborted transaction behind.
    """
    rows = yield Statement(
        "inbox.insert",
        {"consumer": consumer, "event_id": str(event_id), "generation": generation, "outcome": outcome},
    )
    return str(rows[0][0]) if rows else None


def insert_soon(consumer: str, event_id: UUID, bounds: Bounds, *, generation: int = 0) -> Script[str | None]:
    """As ``insert``, in a handler's transaction and within ``bounds``: a twin that is under way for longer raises the
    driver's error for SQLSTATE 55P03. The handler's own statements are not bounded by it."""
    rows = yield Statement(
        "inbox.insert_soon",
        {"consumer": consumer, "event_id": str(event_id), "generation": generation, **bounds.params()},
    )
    return str(rows[0][0]) if rows else None


def find(consumer: str, event_id: UUID, *, generation: int = 0) -> Script[str | None]:
    """The outcome the inbox knows for a message: ``done``, ``skipped``, ``discarded``, or ``None``."""
    rows = yield Statement("inbox.find", {"consumer": consumer, "event_id": str(event_id), "generation": generation})
    return rows[0][0] if rows else None


def insert_many(consumer: str, event_ids: Sequence[str]) -> Script[set[str]]:
    """As ``insert``, for several by one statement, in sorted order; returns those whose row is ours."""
    rows = yield Statement("inbox.insert_many", {"consumer": consumer, "event_ids": Ids(sorted(event_ids))})
    return {row[0] for row in rows}


def find_many(consumer: str, event_ids: Sequence[str]) -> Script[set[str]]:
    """Those of ``event_ids`` that the inbox knows."""
    rows = yield Statement("inbox.find_many", {"consumer": consumer, "event_ids": Ids(event_ids)})
    return {row[0] for row in rows}


def take_back(consumer: str, event_ids: Sequence[str], *, xid: str | None = None) -> Script[int]:
    """Remove rows that were written for messages which did not run after all: in this very transaction, or by the one
    that PostgreSQL calls ``xid`` (SQLite has no names: any text), if it was committed. Returns how many, with
    ``xid``."""
    params = {"consumer": consumer, "event_ids": Ids(sorted(event_ids))}
    if xid is None:
        yield Statement("inbox.take_back", params)
        return 0
    rows = yield Statement("inbox.undo", {**params, "xid": xid})
    return len(rows)


def idle_since(xids: Sequence[str]) -> Script[dict[str, str]]:
    """Of transactions under way, as PostgreSQL calls them: those in which the server waits for its client, and since
    when, or that are over. One whose state this role may not see is not among them."""
    found = {}
    for xid in xids:
        if rows := (yield Statement("inbox.idle_since", {"xid": xid})):
            found[xid] = str(rows[0][0])
    return found


def forget_given_up(consumer: str, event_id: UUID) -> Script[None]:
    """A message that was skipped or discarded comes back: forget that it was. One that was processed stays known."""
    yield Statement("dlq.forgotten", {"consumer": consumer, "event_id": str(event_id)})


def ready_to_write() -> Script[bool]:
    """Whether the inbox is there, and the database takes writes."""
    yield Statement("inbox.identity")
    rows = yield Statement("inbox.read_only")
    return not rows[0][0]


def try_writing(consumer: str) -> Script[bool]:
    """Write as much as a page holds, and take it back in the same transaction: whether there is room."""
    ids = [str(uuid7()) for _ in range(PAGEFUL)]
    yield from insert_many(consumer, ids)
    yield from take_back(consumer, ids)
    return True


def identity() -> Script[int]:
    """A number of this installation's own, to tell whether two connections see the same tables."""
    rows = yield Statement("inbox.identity")
    return int(rows[0][0]) if rows else 0
