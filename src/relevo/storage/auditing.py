"""Scripts that record what people did, and how far their long acts got. Run them in the transaction of the act."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID, uuid4

from relevo.script import Row, Rows, Script, Statement


@dataclass(frozen=True, slots=True)
class Act:
    """``action``: ``parked.redrive`` and the like. ``filter``: what was selected. ``reason``: the operator's."""

    action: str
    actor: str
    reason: str = ""
    filter: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A long act. ``cursor``: how far it got, as its kind understands it. ``total``: as counted when it began."""

    job_id: UUID
    done: int
    total: int | None
    cursor: Mapping[str, Any]


def record(
    act: Act, count: int, *, detail: Mapping[str, Any] | None = None, job_id: UUID | None = None
) -> Script[None]:
    """One audit row. ``count``: messages this act touched."""
    yield Statement(
        "audit.add",
        {
            "actor": act.actor,
            "action": act.action,
            "reason": act.reason,
            "filter": _json(act.filter),
            "count": count,
            "job_id": None if job_id is None else str(job_id),
            "detail": _json(detail),
        },
    )


def begin(act: Act, *, rate: float | None, total: int | None) -> Script[Job]:
    """Start a job, or take up the unfinished one of the same action and filter."""
    rows = yield Statement("job.unfinished", {"kind": act.action, "filter": _json(act.filter)})
    if rows:
        return _job(rows[0])
    job_id = uuid4()
    yield Statement(
        "job.create",
        {
            "job_id": str(job_id),
            "kind": act.action,
            "filter": _json(act.filter),
            "rate": rate,
            "total": total,
            "actor": act.actor,
            "reason": act.reason,
        },
    )
    return Job(job_id, 0, total, {})


def locked(job_id: UUID) -> Script[Job | None]:
    """The job as it stands, its row locked for this step; ``None`` when it is not running any more."""
    rows = yield Statement("job.lock", {"job_id": str(job_id)})
    return _job(rows[0]) if rows else None


def running(job_id: UUID) -> Script[bool]:
    """Whether it still is: nobody cancelled it."""
    return (yield from state_of(job_id)) == "running"


def state_of(job_id: UUID) -> Script[str | None]:
    """``None``: there is no such job."""
    rows = yield Statement("job.state", {"job_id": str(job_id)})
    return rows[0][0] if rows else None


def jobs(state: str | None, limit: int) -> Script[Rows]:
    """Rows of id, kind, state, done, total, rate, actor, reason, started and updated, the newest first."""
    return (yield Statement("job.list", {"state": state, "limit": limit}))


def cancel(job_id: UUID) -> Script[str | None]:
    """Running, paused, or failed and to be resumed → cancelled; its kind, or ``None`` if it was none of these."""
    rows = yield Statement("job.cancel", {"job_id": str(job_id)})
    return rows[0][0] if rows else None


def advance(job_id: UUID, *, cursor: Mapping[str, Any], done: int) -> Script[None]:
    """``done``: units this step added."""
    yield Statement("job.advance", {"job_id": str(job_id), "cursor": _json(cursor), "done": done})


def finish(job_id: UUID, state: Literal["done", "cancelled", "failed"] = "done") -> Script[None]:
    yield Statement("job.finish", {"job_id": str(job_id), "state": state})


def _json(value: Mapping[str, Any] | None) -> str:
    return json.dumps(dict(value or {}), sort_keys=True)


def _job(row: Row) -> Job:
    return Job(UUID(row[0]), row[1], row[2], json.loads(row[3]))
