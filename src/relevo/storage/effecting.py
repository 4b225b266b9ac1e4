"""Scripts of effects: record one, claim what is due, say what came of it. Every change of hands raises the epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID, uuid5

from relevo.script import Row, Script, Statement

EffectState = Literal["pending", "sent", "done", "failed", "unknown"]

LOST: Final = "its performer said nothing until the lease ran out: whether it was done is not known"
PERSON_S: Final = 365 * 86_400.0
"""What is due later than this waits for a person."""

_NAMESPACE: Final = UUID("6f1d1f0c-3a52-5f6e-9a6e-2f3c1f0b7a55")


def idempotency_key(name: str, key: str) -> UUID:
    """The same for every attempt at the effect ``name``/``key``, in every process."""
    return uuid5(_NAMESPACE, f"{name}\x00{key}")


def record(name: str, key: str, data: str, event_id: UUID | None, consumer: str | None) -> Script[bool]:
    """Record an effect; ``data`` is JSON text. False: it was recorded before, and nothing was written."""
    rows = yield Statement(
        "effect.record",
        {
            "name": name,
            "key": key,
            "idempotency_key": str(idempotency_key(name, key)),
            "data": data,
            "event_id": None if event_id is None else str(event_id),
            "consumer": consumer,
        },
    )
    return bool(rows)


@dataclass(frozen=True, slots=True)
class Claim:
    """One effect in hand. ``state``: ``pending``, to be performed, or ``unknown``, to be asked about. ``unreadable``:
    why its row cannot be read, so that neither is possible."""

    effect_id: int
    name: str
    key: str
    idempotency_key: UUID
    data: Any
    state: EffectState
    attempts: int
    asked: int
    epoch: int
    event_id: UUID | None
    consumer: str | None
    unreadable: str | None = None


def expire(names: Sequence[str]) -> Script[list[tuple[str, str]]]:
    """What was sent under a lease that is over becomes *unknown*; returns (name, key) of each."""
    rows = yield Statement("performing.expire", {"names": list(names), "error": LOST})
    return [(row[1], row[2]) for row in rows]


def claim(name: str, holder: UUID, lease_s: float, limit: int, *, ask: bool) -> Script[list[Claim]]:
    """Up to ``limit`` effects that are due. ``ask``: also those whose outcome is unknown."""
    rows = yield Statement(
        "performing.claim",
        {"name": name, "holder": str(holder), "lease_s": lease_s, "limit": limit, "ask": int(ask)},
    )
    return [_claim(row) for row in rows]


def sent(claim: Claim) -> Script[int | None]:
    """It is about to be performed; returns the number of this attempt, ``None`` when the claim is gone."""
    rows = yield Statement("performing.sent", _params(claim))
    return int(rows[0][0]) if rows else None


def unsent(claim: Claim) -> Script[bool]:
    """It was not performed after all, and we know it: back to what it was."""
    rows = yield Statement("performing.unsent", {**_params(claim), "state": claim.state})
    return bool(rows)


def hang(claim: Claim, error: str, lease_s: float) -> Script[bool]:
    """It still runs after its time-out: show it as *unknown*, and keep it for ``lease_s`` more seconds. False: it is
    somebody else's by now."""
    rows = yield Statement("performing.hang", {**_params(claim), "error": error, "lease_s": lease_s})
    return bool(rows)


def release(claim: Claim) -> Script[None]:
    """Give it up untouched."""
    yield Statement("performing.release", _params(claim))


def finish(
    claim: Claim,
    state: EffectState,
    *,
    result: str | None = None,
    error_type: str | None = None,
    error: str | None = None,
    delay_s: float = 0.0,
    asked: int = 0,
) -> Script[bool]:
    """What came of it; ``result`` is JSON text. ``delay_s``: until it is looked at again (pending, unknown). False:
    somebody else has it by now, and nothing was written."""
    rows = yield Statement(
        "performing.finish",
        {
            **_params(claim),
            "state": state,
            "result": result,
            "error_type": error_type,
            "error": error,
            "delay_s": delay_s,
            "asked": asked,
        },
    )
    return bool(rows)


class Listed(NamedTuple):
    """One effect as a listing shows it; seconds by the database's clock."""

    effect_id: int
    name: str
    key: str
    state: str
    attempts: int
    asked: int
    age_s: float
    due_s: float
    event_id: str | None
    consumer: str | None
    error_type: str | None
    error: str | None


def listed(*, name: str | None, state: str | None, key: str | None, limit: int) -> Script[list[Listed]]:
    """The newest first."""
    rows = yield Statement("effects.list", {"name": name, "state": state, "key": key, "limit": limit})
    return [Listed(*map(_shown, row)) for row in rows]


def show(effect_id: int) -> Script[Row | None]:
    """The columns of ``Listed``, then idempotency key, data, result, and three times; ``None`` for an unknown id."""
    rows = yield Statement("effects.show", {"effect_id": effect_id})
    return tuple(map(_shown, rows[0])) if rows else None


def resolve(effect_id: int, state: Literal["done", "pending"], why: str) -> Script[tuple[str, str] | None]:
    """A person found out: done, or not done and so to be performed. ``None``: it is neither unknown nor failed."""
    rows = yield Statement("effects.resolve", {"effect_id": effect_id, "state": state, "why": why})
    return (rows[0][0], rows[0][1]) if rows else None


def counts() -> Script[list[tuple[str, str, int, float]]]:
    """(name, state, how many, age of the oldest in seconds) of what is not done."""
    rows = yield Statement("effects.counts")
    return [(_shown(row[0]), _shown(row[1]), int(row[2]), float(row[3])) for row in rows]


def _params(claim: Claim) -> dict[str, Any]:
    return {"effect_id": claim.effect_id, "epoch": claim.epoch}


def _shown(value: Any) -> Any:
    """SQLite keeps any bytes in a column that was edited by hand."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _claim(row: Row) -> Claim:
    effect_id, name, key, idempotency, data, state, attempts, asked, epoch, event_id, consumer = row
    unreadable = None
    try:
        event = None if event_id is None else UUID(event_id)
        identity, content = UUID(idempotency), json.loads(data)
        if not isinstance(key, str) or not isinstance(asked, int) or not isinstance(attempts, int):
            raise TypeError("key is no text, or asked or attempts is no number")
    except Exception as error:  # noqa: BLE001 - a row that was written by hand
        unreadable = f"the row with effect_id {effect_id} cannot be read: {error}"
        event, identity, content = None, idempotency_key(str(name), str(key)), None
        key, attempts, asked = _shown(key), 0, 0
    return Claim(effect_id, name, key, identity, content, state, attempts, asked, epoch, event, consumer, unreadable)
