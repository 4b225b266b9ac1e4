"""Text of strangers, fit for a terminal and for a log that is read line by line.

Event ids, keys, types, headers, payloads and the texts of errors come from other systems. A control character in them
moves the cursor, clears the screen or begins a line that looks like one of Relevo's own; a bidirectional override or a
character without width makes a text look like another one.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

import msgspec

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JOINERS: Final = "\u200c\u200d"
_SUSPECT: Final = re.compile(r"[^ -~]")


def printable(text: str, *, lines: bool = False) -> str:
    r"""``text`` with everything that is not printable escaped, as ``\n``, ``\x1b``, ``\u202e`` or ``\U000e0041``.

    Escaped are control characters (C0, DEL, C1), line and paragraph separators, bidirectional marks, characters without
    width, lone surrogates, and code points without a character. Spaces of any width stay. The two joiners stay where a
    script needs them: after a character that is not ASCII. Args: ``lines``: whether line feeds and tabs stay, for text
    that is known to have several lines.
    """
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda found: _escaped(found, lines), text)


def short(text: str, limit: int) -> str:
    """``printable(text)``, cut to ``limit`` characters; the cut is marked with ``…``."""
    whole = printable(text[: limit + 1])
    return whole if len(whole) <= limit else whole[: limit - 1] + "…"


def json_text(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON that a terminal shows as it is: what is not printable is written as JSON's own ``\\uXXXX``, so
    that a parser reads exactly what was given, lone surrogates included. What JSON cannot hold is written as its text.

    Args:
        indent: spaces per level; ``None`` for one line.
    """
    try:
        raw = msgspec.json.encode(value, enc_hook=_text)
        text = (raw if indent is None else msgspec.json.format(raw, indent=indent)).decode()
    except (UnicodeError, TypeError, ValueError, RecursionError, OverflowError):
        text = json.dumps(_plain(value), ensure_ascii=False, indent=indent, default=_text)
    if indent is None and text.isprintable():
        return text
    return _SUSPECT.sub(lambda found: found[0] if found[0] == "\n" else _json_escaped(found), text)


def _escaped(found: re.Match[str], lines: bool) -> str:
    character = found[0]
    if _visible(found) or (lines and character in "\n\t"):
        return character
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escaped(found: re.Match[str]) -> str:
    character = found[0]
    if _visible(found):
        return character
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _visible(found: re.Match[str]) -> bool:
    character = found[0]
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return True
    start = found.start()
    return (
        character in _JOINERS
        and start > 0
        and not (before := found.string[start - 1]).isascii()
        and (before.isprintable())
    )


def _text(value: Any) -> str:
    """The text of what JSON has no form for. Never raises."""
    try:
        return str(value)
    except Exception as failed:  # noqa: BLE001 - a broken __str__ must not hide the line it belongs to
        return f"(a {type(value).__name__} without a text: {type(failed).__name__})"


def _plain(value: Any, depth: int = 20) -> Any:
    """``value`` as the standard library's encoder takes it. Total."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        return {_text(name): _plain(each, depth - 1) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each, depth - 1) for each in value]
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name), depth - 1) for name in value.__struct_fields__}
    return _text(value)
