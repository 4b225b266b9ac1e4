"""On the wire: CloudEvents 1.0 in binary content mode, as headers (the Kafka protocol binding's names, ``ce_…``).

``encode`` gives what a broker carries beside the payload; ``decode`` makes a ``Message`` of what arrived, ours or a
stranger's. Pure. Extension attributes: ``ce_kind`` and ``ce_schemaversion`` when not the default, ``ce_aggregatetype``,
``ce_aggregateid``, ``ce_aggregateversion``. Everything else in ``Message.headers`` (``traceparent``, correlation and
causation ids, the user's own) travels under its own name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from relevo.ids import foreign_id
from relevo.message import JSON, Kind, Message
from relevo.outgoing import Outgoing, Sendable
from relevo.times import EPOCH, parsed

Headers = Sequence[tuple[str, bytes]]
Arrived = Sequence[tuple[str, bytes | str | None]]
"""Headers of a message of any sender: names may repeat, values may be missing."""

MALFORMED: Final = "relevo-malformed"
"""The header of a stand-in that says why the message itself could not be read."""

REPLACEMENT = "\ufffd"
_RESERVED = re.compile(r"ce_|cloudevents[:_]|content-type\Z", re.IGNORECASE)
_INITIALS: Final = frozenset(("c", "C"))
_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")
BOUNDED: Final = 6
"""So many headers every message has; together they are below 2,000 bytes. More of them may be of any size."""

REASON_MAX: Final = 1_000
_FIXED_MAX: Final = 10_000
_Fixed = tuple[bytes, Kind, str, int, str, str | None]
_fixed: dict[_Fixed, Headers] = {}
"""What all messages of a type have in common, encoded once: by source, kind, type, schema version, content type and
aggregate type."""


def encode(message: Sendable, source: bytes) -> list[tuple[str, bytes]]:
    """Headers for ``message``; ``source`` is the CloudEvents source (``urn:relevo:shop``), encoded by the caller."""
    others: Mapping[str, str] | None
    if type(message) is Outgoing:
        # All at once: a look-up of each by its name costs a third more.
        _, _, _, id_text, time_text, kind, type_, version, content, of_type, of_id, of_version, text = message
        others = message.headers if text is not None else None
    else:
        id_text, time_text = str(message.event_id).encode(), message.created_at.isoformat().encode()
        kind, type_, version, content = message.kind, message.type, message.schema_version, message.content_type
        of_type, of_id, of_version = message.aggregate_type, message.aggregate_id, message.aggregate_version
        others = message.headers
    fixed = (source, kind, type_, version, content, of_type)
    headers = [("ce_id", id_text), ("ce_time", time_text), *(_fixed.get(fixed) or _make_fixed(fixed))]
    if of_id is not None:
        headers.append(("ce_aggregateid", of_id.encode()))
    if of_version is not None:
        headers.append(("ce_aggregateversion", str(of_version).encode()))
    if others:
        headers.extend(
            (name, value.encode())
            for name, value in others.items()
            if name[:1] not in _INITIALS or not reserved(name)  # a row that was written around every check
        )
    return headers


def reserved(name: str) -> bool:
    """Whether a header of this name would be taken for an attribute by some reader: those are set here alone."""
    return _RESERVED.match(name) is not None


def _make_fixed(fixed: _Fixed) -> Headers:
    source, kind, type_, schema_version, content_type, aggregate_type = fixed
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_source", source),
        ("ce_type", type_.encode()),
        ("content-type", content_type.encode()),
    ]
    if kind != "event":
        headers.append(("ce_kind", kind.encode()))
    if schema_version != 1:
        headers.append(("ce_schemaversion", str(schema_version).encode()))
    if aggregate_type is not None:
        headers.append(("ce_aggregatetype", aggregate_type.encode()))
    if len(_fixed) >= _FIXED_MAX:
        _fixed.clear()
    _fixed[fixed] = headers
    return headers


def decode(
    topic: str,
    key: bytes | None,
    payload: bytes | None,
    headers: Arrived,
    *,
    arrived_at: datetime,
    shard: str,
    position: int,
) -> Message:
    """The message that arrived. Never raises for a stranger's message: what is missing or malformed gets a default.

    Texts are what a database can keep: what is not UTF-8, and a NUL, becomes U+FFFD. Key and payload stay bytes.
    The id is ``ce_id`` when that is a UUID; else a UUIDv5 of source (or topic) and id; else one of topic, shard and
    position, so that a redelivery has the same id. A missing type is ``""``, which no handler can be declared for.
    Of an attribute that is there more than once, in upper or lower case, the first one counts.
    """
    attributes: dict[str, str] = {}
    others: dict[str, str] = {}
    content_type = None
    for name, raw in headers:
        value = _text(raw) if raw is not None else ""
        if not name.isascii() or "\x00" in name:
            name = _text(name)
        lower = name.lower()
        if lower.startswith("ce_"):
            attributes.setdefault(lower[3:], value)
        elif lower == "content-type":
            if content_type is None:
                content_type = value
        else:
            others[name] = value
    if REPLACEMENT in attributes.get("id", ""):
        attributes["id"] = _exact(headers, "ce_id")
    kind: Kind = "command" if attributes.get("kind") == "command" else "event"
    return Message(
        event_id=_event_id(attributes, topic, shard, position),
        type=attributes.get("type", ""),
        topic=topic,
        payload=payload,
        created_at=_time(attributes.get("time"), arrived_at),
        kind=kind,
        schema_version=_integer(attributes.get("schemaversion"), 31) or 1,
        key=key,
        content_type=JSON if content_type is None else content_type,
        headers=others,
        aggregate_type=attributes.get("aggregatetype"),
        aggregate_id=attributes.get("aggregateid"),
        aggregate_version=_integer(attributes.get("aggregateversion")),
    )


def _event_id(attributes: dict[str, str], topic: str, shard: str, position: int) -> UUID:
    given = attributes.get("id")
    if not given:
        return foreign_id("position", topic, shard, str(position))
    try:
        return UUID(given)
    except ValueError:
        # Without a source two strangers may well count alike: the id counts within the topic, then.
        return foreign_id("cloudevents", attributes.get("source") or f"topic:{topic}", given)


def stand_in(
    topic: str, key: bytes | None, payload: bytes | None, *, shard: str, position: int, error: BaseException
) -> tuple[Message, str]:
    """For what could not be read: a message with its key and bytes that no handler is declared for, and why."""
    reason = _text(f"it cannot be read: {type(error).__name__}: {error}")[:REASON_MAX]
    message = Message(
        event_id=foreign_id("position", topic, shard, str(position)),
        type="",
        topic=topic,
        payload=payload,
        created_at=EPOCH,
        key=key,
        headers={MALFORMED: reason},
    )
    return message, reason


def _text(raw: bytes | str) -> str:
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogatepass")
    text = raw.decode("utf-8", "replace")
    return text.replace("\x00", REPLACEMENT) if "\x00" in text else text


def _exact(headers: Arrived, wanted: str) -> str:
    """The first one of this name with nothing replaced: two ids that differ stay two."""
    raw = next(value for name, value in headers if name.lower() == wanted) or b""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace")
    return text.encode("utf-8", "backslashreplace").decode()


def _integer(text: str | None, bits: int = 63) -> int | None:
    """A whole number that fits a column of so many bits and a sign, else ``None``: a stranger may write anything."""
    if text is None or not _INTEGER.match(text):
        return None
    value = int(text)
    return value if -(2**bits) <= value < 2**bits else None


def _time(text: str | None, default: datetime) -> datetime:
    if text is None:
        return default
    return parsed(text) or default
