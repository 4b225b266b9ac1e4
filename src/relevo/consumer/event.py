"""What a handler gets: the decoded data and everything known about the message. It cannot acknowledge."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from relevo.consumer.headers import headers_of
from relevo.message import Message

T = TypeVar("T")


class Event(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One message as its handler sees it. ``attempt``: 1 for the first counted run. ``replayed``: it comes again
    in a replay. ``time``: when it was added to the outbox, aware, UTC. Nothing in it can be changed but what is mutable
    in ``data``, which is decoded anew for each attempt."""

    id: UUID
    type: str
    schema_version: int
    topic: str
    key: bytes | None
    data: T
    headers: Mapping[str, str]
    time: datetime
    attempt: int
    consumer: str
    aggregate_type: str
    aggregate_id: str | None
    aggregate_version: int | None
    replayed: bool = False

    @classmethod
    def of(cls, message: Message, data: T, *, attempt: int, consumer: str, replayed: bool = False) -> Event[T]:
        """The event of ``message``; aggregate type and id default to topic and key."""
        aggregate_id = message.aggregate_id
        if aggregate_id is None and message.key is not None:
            aggregate_id = message.key.decode("utf-8", "replace")
        return cls(
            id=message.event_id,
            type=message.type,
            schema_version=message.schema_version,
            topic=message.topic,
            key=message.key,
            data=data,
            headers=headers_of(message.headers),
            time=message.created_at,
            attempt=attempt,
            consumer=consumer,
            aggregate_type=message.aggregate_type or message.topic,
            aggregate_id=aggregate_id,
            aggregate_version=message.aggregate_version,
            replayed=replayed,
        )
