"""Messages as AMQP 0-9-1 carries them: the CloudEvents attributes of ``relevo.wire`` as headers, and properties.

Beyond those: ``ce_partitionkey`` is the key, as bytes (absent for none, empty for ``b""``); ``ce_tombstone`` tells a
payload of ``None`` from an empty one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import uuid4

from relevo import wire
from relevo.clients.aio_pika import properties
from relevo.clients.amqp_decoding import PROBLEM
from relevo.message import Message
from relevo.outgoing import Sendable
from relevo.times import EPOCH, clamped

KEY: Final = "ce_partitionkey"
TOMBSTONE: Final = "ce_tombstone"
PERSISTENT: Final = 2
_SERVERS_OWN: Final = frozenset({"x-delivery-count", "x-acquired-count"})
_BROKERS_OWN: Final = _SERVERS_OWN | {KEY, TOMBSTONE}
_BINDING: Final = ("cloudEvents:", "cloudEvents_")
"""Prefixes of the CloudEvents binding for AMQP, which strangers may use."""


def to_properties(message: Sendable, source: bytes) -> Any:
    headers: dict[str, Any] = {}
    for name, value in wire.encode(message, source):
        if name != "content-type":
            headers[name] = value.decode()
    if message.key is not None:
        headers[KEY] = bytearray(message.key)  # a byte array; ``bytes`` would become text
    if message.payload is None:
        headers[TOMBSTONE] = True
    return properties(
        message_id=str(message.event_id),
        content_type=message.content_type,
        delivery_mode=PERSISTENT,
        message_type=message.type,
        timestamp=max(message.created_at, EPOCH),  # AMQP has none before; ce_time is the time
        headers=headers,
    )


NO_ID: Final = "no id: neither ce_id nor the property message_id, so that a redelivery could not be recognised"

WithoutId = Literal["run", "content", "park"]
"""What a message without any id is: a queue has no positions to derive one from, and does not tell which of two equal
messages it delivers again."""


def malformed(delivered: Any, without_id: WithoutId) -> str | None:
    """Why a message is not to be handled, if so."""
    problem: str | None = getattr(delivered.header, PROBLEM, None)
    if problem is not None:
        return f"its properties cannot be read: {problem}"
    return NO_ID if without_id == "park" and not has_id(delivered) else None


def has_id(delivered: Any) -> bool:
    given = delivered.header.properties
    raw: Mapping[str, Any] = given.headers or {}
    return bool(given.message_id or raw.get("ce_id") or any(raw.get(prefix + "id") for prefix in _BINDING))


def to_message(topic: str, delivered: Any, shard: str, position: int, without_id: WithoutId = "run") -> Message:
    """Never raises for a stranger's message. The property ``message_id`` counts within ``app_id``. One without any id
    gets a random one, new at each delivery, or (``content``) the same as every other one that is equal to it."""
    given = delivered.header.properties
    raw: Mapping[str, Any] = given.headers or {}
    headers: dict[str, bytes] = {}
    for name, value in raw.items():
        if name in _BROKERS_OWN:
            continue
        if name.startswith(_BINDING):
            headers.setdefault("ce_" + name[len("cloudEvents:") :], _bytes(value))
        else:
            headers[name] = _bytes(value)
    if not headers.get("ce_id"):
        if given.message_id:
            headers["ce_id"] = given.message_id.encode()
            headers.setdefault("ce_source", (given.app_id or "").encode())
        else:
            made = str(uuid4()) if without_id != "content" else _digest(given, raw, delivered.body)
            headers["ce_id"] = made.encode()
    if "ce_type" not in headers and given.message_type:
        headers["ce_type"] = given.message_type.encode()
    if given.content_type:
        headers["content-type"] = given.content_type.encode()
    key = raw.get(KEY)
    return wire.decode(
        topic,
        None if key is None else _bytes(key),
        None if raw.get(TOMBSTONE) and not delivered.body else bytes(delivered.body),
        list(headers.items()),
        arrived_at=_time(given.timestamp),
        shard=shard,
        position=position,
    )


def _digest(given: Any, raw: Mapping[str, Any], body: bytes) -> str:
    """Of everything the sender wrote: body, headers, properties. Not of what the server adds at a redelivery."""
    headers = {name: repr(value) for name, value in raw.items() if name not in _SERVERS_OWN}
    properties = [given.content_type, given.message_type, given.correlation_id, given.app_id, given.reply_to]
    told = json.dumps([headers, properties, repr(given.timestamp)], sort_keys=True)
    return hashlib.sha256(told.encode("utf-8", "surrogatepass") + b"\0" + bytes(body)).hexdigest()


def _bytes(value: Any) -> bytes:
    match value:
        case bytes() | bytearray():
            return bytes(value)
        case str():
            return value.encode("utf-8", "surrogatepass")
        case None:
            return b""
        case datetime():
            return value.isoformat().encode()
        case _:
            return str(value).encode()


def _time(timestamp: datetime | None) -> datetime:
    if timestamp is None:
        return datetime.now(UTC)
    return clamped(timestamp)
