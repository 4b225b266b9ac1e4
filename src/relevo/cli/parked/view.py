"""What ``relevo parked list`` and ``show`` print."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from relevo.storage.parking import HeldKey, Queued, readable


class KeyView(msgspec.Struct, kw_only=True):
    """One held key. ``error_group``: exception type and the first place in your code. Times in seconds ago."""

    side: str
    consumer: str
    topic: str
    key: str
    state: str
    draining_now: bool
    reason: str
    error_group: str | None
    error: str | None
    attempts: int
    held_for_s: float
    messages: int


class GroupView(msgspec.Struct, kw_only=True):
    """Held keys with the same error."""

    side: str
    consumer: str
    topic: str
    state: str
    error_group: str | None
    reason: str
    keys: int
    messages: int
    oldest_s: float


class MessageView(msgspec.Struct, kw_only=True):
    """One message of a queue. ``payload``: text, or base64 where ``payload_is_base64`` says so."""

    event_id: str
    type: str
    position: int
    shard: str
    content_type: str
    payload: str | None
    payload_bytes: int
    payload_is_base64: bool
    headers: dict[str, str]
    edited_from: str | None
    held_for_s: float


class KeyWithQueue(msgspec.Struct, kw_only=True):
    key: KeyView
    queue: list[MessageView]
    queue_left_out: int


def key_view(key: HeldKey) -> KeyView:
    return KeyView(
        side=key.id.side,
        consumer=key.id.consumer,
        topic=key.id.topic,
        key=readable(key.id.key),
        state=key.state,
        draining_now=key.claimed,
        reason=key.reason,
        error_group=key.error_type,
        error=key.error,
        attempts=key.attempts,
        held_for_s=round(key.since_s, 3),
        messages=key.messages,
    )


def groups(keys: Sequence[HeldKey]) -> list[GroupView]:
    """Keys by side, consumer, topic, state and error; those with most keys first."""
    found: dict[tuple[str, ...], GroupView] = {}
    for key in keys:
        name = (key.id.side, key.id.consumer, key.id.topic, key.state, key.error_type or "")
        group = found.get(name)
        if group is None:
            group = found[name] = GroupView(
                side=key.id.side,
                consumer=key.id.consumer,
                topic=key.id.topic,
                state=key.state,
                error_group=key.error_type,
                reason=key.reason,
                keys=0,
                messages=0,
                oldest_s=0.0,
            )
        group.keys += 1
        group.messages += key.messages
        group.oldest_s = max(group.oldest_s, round(key.since_s, 3))
    return sorted(found.values(), key=lambda group: -group.keys)


def message_view(queued: Queued) -> MessageView:
    message = queued.message
    text, encoded = text_of(message.payload)
    return MessageView(
        event_id=str(message.event_id),
        type=message.type,
        position=queued.position,
        shard=queued.shard,
        content_type=message.content_type,
        payload=text,
        payload_bytes=len(message.payload or b""),
        payload_is_base64=encoded,
        headers=dict(message.headers),
        edited_from=None if queued.edited_from is None else str(queued.edited_from),
        held_for_s=round(queued.held_s, 3),
    )


def text_of(payload: bytes | None) -> tuple[str | None, bool]:
    """A payload as text, or as base64 (true) where it is none."""
    if payload is None:
        return None, False
    try:
        return payload.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), True
