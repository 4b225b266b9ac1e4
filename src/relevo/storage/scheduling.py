"""Scripts of scheduled messages: add and cancel on the caller's handle, move into the outbox when due.

Due times are the database's: a delay is added there, a point in time travels as microseconds since 1970 UTC, so neither
the time zone of a session nor the clock of an application server can move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from relevo.errors import RefusedError
from relevo.message import Message
from relevo.ports.database import Dialect
from relevo.script import Script, Statement
from relevo.storage import appending, auditing
from relevo.storage.auditing import Act

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
_LONGEST = timedelta(days=36_525)


@dataclass(frozen=True, slots=True)
class Due:
    """When: exactly one of the two, in microseconds. ``after_us`` counts from the database's now."""

    at_us: int | None = None
    after_us: int | None = None


def due(at: datetime | None, after: timedelta | None) -> Due | None:
    """The checked due time, ``None`` for now. Raises ``RefusedError`` for both at once, for a time without a zone, a
    negative delay, and what no database can store."""
    if at is None and after is None:
        return None
    if at is not None and after is not None:
        raise RefusedError("give at= or after=, not both", path="at")
    if after is not None:
        if not isinstance(after, timedelta):
            raise RefusedError(f"after must be a timedelta, not {type(after).__name__}", path="after")
        if not timedelta(0) <= after <= _LONGEST:
            raise RefusedError("after must be from 0 to 100 years", path="after")
        return Due(after_us=after // timedelta(microseconds=1))
    if not isinstance(at, datetime):
        raise RefusedError(f"at must be a datetime, not {type(at).__name__}", path="at")
    if at.tzinfo is None or at.utcoffset() is None:
        raise RefusedError(
            "at has no time zone, so it means another moment on every machine. Give an aware datetime "
            "(datetime.now(UTC), or one with a ZoneInfo), or after=timedelta(…)",
            path="at",
        )
    moment = at.astimezone(UTC)
    if not _EPOCH <= moment < _LATEST:
        raise RefusedError("at must be from 1970 to 9998", path="at")
    return Due(at_us=(moment - _EPOCH) // timedelta(microseconds=1))


def add(message: Message, when: Due) -> Script[None]:
    """Write one message to be sent ``when``."""
    params: dict[str, Any] = {**appending.row(message), "at_us": when.at_us, "after_us": when.after_us}
    yield Statement("scheduled.add", params)


def cancel(event_id: UUID) -> Script[bool]:
    """Take a message back that has not been moved yet; false: it is on its way, or there is none."""
    rows = yield Statement("scheduled.cancel", {"event_id": event_id})
    return bool(rows)


def next_due() -> Script[float | None]:
    """Seconds until the next one is due (0: now), ``None`` when nothing is scheduled."""
    rows = yield Statement("scheduled.next_due")
    return float(rows[0][0]) if rows else None


def move(dialect: Dialect, limit: int) -> Script[int]:
    """Move up to ``limit`` due messages into the outbox, in the order they were due, in the surrounding transaction;
    returns how many. ``seq`` is taken here. One mover at a time: hold the duty first."""
    if dialect == "postgresql":
        return len((yield Statement("scheduled.move", {"limit": limit})))
    return (yield from move_some(dialect, (yield from due_ids(limit))))


def due_ids(limit: int) -> Script[list[int]]:
    """What ``move`` would move, by the numbers of the rows."""
    rows = yield Statement("scheduled.due", {"limit": limit})
    return [int(row[0]) for row in rows]


def move_some(dialect: Dialect, ids: Sequence[int]) -> Script[int]:
    """As ``move``, these alone."""
    if not ids:
        return 0
    if dialect == "postgresql":
        return len((yield Statement("scheduled.move_some", {"ids": list(ids)})))
    yield Statement("scheduled.copy", {"ids": list(ids)})
    yield Statement("scheduled.remove", {"ids": list(ids)})
    return len(ids)


def set_aside(schedule_id: int, actor: str, why: str, *, audit: bool = True) -> Script[tuple[str, str] | None]:
    """It cannot be moved: it stays in the table and is not due any more; the audit says why. Its id and topic."""
    rows = yield Statement("scheduled.aside", {"schedule_id": schedule_id})
    if not rows:
        return None
    event_id, topic = str(rows[0][0]), str(rows[0][1])
    detail = {"schedule_id": schedule_id, "event_id": event_id, "topic": topic}
    if audit:
        yield from auditing.record(Act("scheduled.aside", actor, why, {"topic": topic}), 1, detail=detail)
    return event_id, topic
