"""Editing a held message: a new message in its place that remembers the old one."""

from __future__ import annotations

import hashlib
import json

import msgspec

from relevo.errors import RefusedError, TooLargeError
from relevo.ids import uuid7
from relevo.message import Message
from relevo.ops.parked import Operator, acted, described
from relevo.ports.database import Database
from relevo.script import Script
from relevo.storage import auditing, parking
from relevo.storage.auditing import Act
from relevo.storage.holding import KeyId
from relevo.storage.parking import EDITED_FROM, Acted, Done, Queued


def edited(old: Message, payload: bytes, *, bytes_max: int) -> Message:
    """``old`` with another payload, an id of its own and a header that names the old one. Raises ``RefusedError`` for
    what is not JSON where the content type says so, for no change, and ``TooLargeError``."""
    if payload == old.payload:
        raise RefusedError("the payload is as it was: nothing was changed")
    if is_json(old.content_type):
        try:
            json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"the new payload is not JSON, as {old.content_type} says it is: {error}") from None
    new = msgspec.structs.replace(
        old,
        event_id=uuid7(),
        payload=payload,
        headers={**old.headers, EDITED_FROM: str(old.event_id)},
    )
    if new.size_bytes() > bytes_max:
        raise TooLargeError(f"the edited message has {new.size_bytes()} bytes, {bytes_max} are allowed")
    return new


def is_json(content_type: str) -> bool:
    """``application/json`` and everything ``+json``, whatever its parameters."""
    media = content_type.partition(";")[0].strip().lower()
    return media.endswith(("/json", "+json"))


async def edit(
    database: Database, id: KeyId, queued: Queued, payload: bytes, operator: Operator, *, bytes_max: int
) -> Message:
    """Put a new message in the place of ``queued``; returns it. The key stays parked.

    The audit remembers size and SHA-256 of the old payload; the old message itself stays where it came from, in the
    outbox or at the broker. Raises ``RefusedError`` if the key is being drained or is not as it was.
    """
    old = queued.message
    new = edited(old, payload, bytes_max=bytes_max)
    act = Act("parked.edit", operator.actor, operator.reason, {"event_id": str(old.event_id)})
    detail = {
        **described(id),
        "old_event_id": str(old.event_id),
        "new_event_id": str(new.event_id),
        "old_bytes": len(old.payload or b""),
        "new_bytes": len(payload),
        "old_sha256": hashlib.sha256(old.payload or b"").hexdigest(),
    }

    def step() -> Script[Done]:
        done = yield from parking.replace(id, queued.held_seq, new, old.event_id)
        if isinstance(done, Acted):
            yield from auditing.record(act, 1, detail=detail)
        return done

    acted(await database.run(step()), id)
    return new
