"""Long acts of operators: which there are, and how one is ended for good."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from relevo.errors import RefusedError
from relevo.ports.database import Database
from relevo.script import Script
from relevo.storage import auditing, replaying
from relevo.storage.auditing import Act
from relevo.storage.parking import readable
from relevo.storage.rows import to_time


class JobLine(msgspec.Struct, kw_only=True):
    """One job. ``state``: running, paused, done, cancelled or failed. ``total``: as counted when it began."""

    job_id: str
    kind: str
    state: str
    done: int
    total: int | None
    rate: float | None
    actor: str
    reason: str
    started_at: datetime
    updated_at: datetime


class Cancelled(msgspec.Struct, kw_only=True):
    """``held_keys``: of a replay of mode *again*, keys (topic/key) for which messages arrived meanwhile: they are live
    as soon as a process of ``consumer`` has worked those off. All its other keys are live now."""

    job_id: str
    kind: str
    consumer: str = ""
    held_keys: list[str] = []


async def listed(database: Database, *, state: str | None, limit: int) -> list[JobLine]:
    """The newest ones."""
    rows = await database.run(auditing.jobs(state, limit), read_only=True)
    return [
        JobLine(
            job_id=row[0],
            kind=row[1],
            state=row[2],
            done=row[3],
            total=row[4],
            rate=row[5],
            actor=row[6],
            reason=row[7],
            started_at=to_time(row[8]),
            updated_at=to_time(row[9]),
        )
        for row in rows
    ]


async def cancel(database: Database, job_id: UUID, *, actor: str, reason: str) -> Cancelled:
    """End it for good: whoever works on it stops after what is under way, and nobody takes it up again. What it did so
    far stays done. Raises ``RefusedError`` for a job that is over, or that there is not."""
    return await database.run(_cancel(job_id, Act("job.cancel", actor, reason, {"job_id": str(job_id)})))


def _cancel(job_id: UUID, act: Act) -> Script[Cancelled]:
    kind = yield from auditing.cancel(job_id)
    if kind is None:
        state = yield from auditing.state_of(job_id)
        raise RefusedError(f"there is no job {job_id}" if state is None else f"job {job_id} is {state} already")
    yield from auditing.record(act, 0, job_id=job_id)
    if kind != replaying.KIND:
        return Cancelled(job_id=str(job_id), kind=kind)
    found = yield from replaying.find(job_id)
    keys = yield from replaying.let_go(job_id)
    yield from replaying.keep_no_more(job_id)
    held = [f"{topic}/{readable(key)}" for topic, key in keys]
    consumer = "" if found is None else found.consumer
    return Cancelled(job_id=str(job_id), kind=kind, consumer=consumer, held_keys=held)
