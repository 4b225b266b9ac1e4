"""What an operator can do about effects: look, and settle those whose outcome nobody knows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from relevo.errors import RefusedError, UsageError
from relevo.ports.database import Database
from relevo.script import Script
from relevo.storage import auditing, effecting
from relevo.storage.rows import to_time
from relevo.times import EPOCH

LIST_MAX = 100


class EffectLine(msgspec.Struct, kw_only=True):
    """One effect in a listing. ``due_s``: seconds until it is looked at next, negative when that is past."""

    effect_id: int
    name: str
    key: str
    state: str
    attempts: int
    asked: int
    age_s: float
    due_s: float | None
    event_id: str | None
    consumer: str | None
    error_type: str | None
    error: str | None


class EffectDetail(EffectLine, kw_only=True):
    """Everything about one."""

    idempotency_key: str
    data: Any
    result: Any
    created_at: datetime
    sent_at: datetime | None
    finished_at: datetime | None


async def listed(
    database: Database, *, name: str | None = None, state: str | None = None, key: str | None = None, limit: int
) -> list[EffectLine]:
    """The newest ``limit`` effects that match."""
    rows = await database.run(effecting.listed(name=name, state=state, key=key, limit=limit), read_only=True)
    return [_line(row) for row in rows]


async def show(database: Database, effect_id: int) -> EffectDetail:
    """One effect. Raises ``RefusedError`` for an unknown id."""
    row = await database.run(effecting.show(effect_id), read_only=True)
    if row is None:
        raise RefusedError(f"there is no effect {effect_id}")
    line = _line(effecting.Listed(*row[:12]))
    idempotency_key, data, result, created_at, sent_at, finished_at = row[12:18]
    return EffectDetail(
        **msgspec.structs.asdict(line),
        idempotency_key=idempotency_key,
        data=_json(data),
        result=None if result is None else _json(result),
        created_at=_time(created_at) or EPOCH,
        sent_at=_time(sent_at),
        finished_at=_time(finished_at),
    )


async def resolve(
    database: Database, effect_id: int, verdict: Literal["done", "not-done"], *, why: str, actor: str
) -> EffectDetail:
    """A person found out what came of it: done; or not done, and then it is performed again. Audited with it.

    Raises ``RefusedError`` for an effect that is neither unknown nor failed, ``UsageError`` without a reason.
    """
    if not why.strip():
        raise UsageError("say why: it is kept in the audit")
    await database.run(_resolve(effect_id, verdict, why.strip(), actor))
    return await show(database, effect_id)


def _resolve(effect_id: int, verdict: Literal["done", "not-done"], why: str, actor: str) -> Script[None]:
    resolved = yield from effecting.resolve(effect_id, "done" if verdict == "done" else "pending", why)
    if resolved is None:
        row = yield from effecting.show(effect_id)
        if row is None:
            raise RefusedError(f"there is no effect {effect_id}")
        raise RefusedError(f"effect {effect_id} is {row[3]}: only one that is unknown or failed can be resolved")
    name, key = resolved
    act = auditing.Act(f"effects.{verdict}", actor, why, {"effect_id": effect_id, "name": name, "key": key})
    yield from auditing.record(act, 1)


def _time(value: Any) -> datetime | None:
    """``None`` also for what is no time: SQLite keeps any value that was written by hand."""
    try:
        return None if value is None else to_time(value).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def _json(text: Any) -> Any:
    """What is stored; as it stands where it cannot be read, which is why the effect failed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return f"(cannot be read) {text!s:.200}"


def _line(row: effecting.Listed) -> EffectLine:
    line = EffectLine(**row._asdict())
    if row.state in ("done", "failed") or row.due_s > effecting.PERSON_S:
        line.due_s = None
    return line
