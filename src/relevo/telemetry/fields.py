"""What a log line says of a message, as fields: never its payload or its headers."""

from __future__ import annotations

from typing import Any, Final

from relevo.printable import short

TEXT_MAX: Final = 100
"""Characters of a key, a type or a topic."""
REASON_MAX: Final = 500
"""Characters of an error's text."""


def of_message(message: Any) -> dict[str, Any]:
    """``event_id``, ``type``, ``topic`` and ``key``, escaped and cut."""
    return {
        "event_id": str(message.event_id),
        "type": short(message.type, TEXT_MAX),
        "topic": short(message.topic, TEXT_MAX),
        "key": None if message.key is None else shown_key(message.key),
    }


def shown_key(key: bytes) -> str:
    """A key's text, or its bytes in hexadecimal where it is none; escaped and cut."""
    try:
        return short(bytes(key[: 4 * TEXT_MAX]).decode(), TEXT_MAX)
    except UnicodeDecodeError:
        return short(f"0x{bytes(key[:TEXT_MAX]).hex()}", TEXT_MAX)
