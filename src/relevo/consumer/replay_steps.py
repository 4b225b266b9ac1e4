"""A replayed message's transaction, step by step."""

from __future__ import annotations

from typing import Final

from relevo.consumer.work import Call, Done, Steps
from relevo.errors import LostOwnershipError
from relevo.message import Message
from relevo.script import Statement
from relevo.storage import inboxing, replaying
from relevo.storage.holding import Claimed, KeyId
from relevo.storage.inboxing import Bounds

BOUNDS: Final = Bounds()


def repaired(consumer: str, key: KeyId, message: Message, generation: int) -> Steps[Done]:
    """Run the handler although the inbox knows the message, once in this ``generation``. Generation 0 is that of a
    replay begun by a version without generations for repairs: the handler runs each time. A message that an operator
    skipped or discarded is left out, and so is one that still waits in its key's queue."""
    held = yield Statement("held.lock_key_soon", {**key.params(), **BOUNDS.params()})
    found = yield from inboxing.find(consumer, message.event_id)
    if found in ("skipped", "discarded"):
        return "duplicate"
    if held and found is None:
        return "behind"
    xid = None
    if generation:
        xid = yield from inboxing.insert_soon(consumer, message.event_id, BOUNDS, generation=generation)
        if not xid:
            return "duplicate"
    if found is None:  # purged, or not delivered yet: done with this
        xid = (yield from inboxing.insert_soon(consumer, message.event_id, BOUNDS)) or xid
    yield Call(xid)
    return "handled"


def again(consumer: str, claim: Claimed | None, message: Message, generation: int, lease_s: float) -> Steps[Done]:
    """Once per generation. Whether the key is still ours is asked at the end, so that arrivals need not wait for a slow
    handler to queue behind."""
    found = yield from inboxing.find(consumer, message.event_id)
    if found in ("skipped", "discarded"):
        return "duplicate"
    xid = yield from inboxing.insert_soon(consumer, message.event_id, BOUNDS, generation=generation)
    if not xid:
        return "duplicate"
    if found is None:
        yield from inboxing.insert_soon(consumer, message.event_id, BOUNDS)
    yield Call(xid)
    if claim is not None and not (yield from replaying.still_ours(claim, lease_s)):
        raise LostOwnershipError(f"the key of {message.event_id} is not held by this replay any more")
    return "handled"
