"""What ``relevo parked list`` and ``show`` print."""

from __future__ import annotations

import base64

import msgspec

from relevo.storage.parking import Group, HeldKey, Queued, readable


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


def group_view(group: Group) -> GroupView:
    return GroupView(
        side=group.side,
        consumer=group.consumer,
        topic=group.topic,
        state=group.state,
        error_group=group.error_type,
        reason=group.reason,
        keys=group.keys,
        messages=group.messages,
        oldest_s=round(group.oldest_s, 3),
    )


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
