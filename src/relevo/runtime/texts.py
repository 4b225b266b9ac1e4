"""Errors as text that every database keeps: no NUL, no lone surrogate, bounded."""

from __future__ import annotations

import re
import traceback
from types import TracebackType
from typing import Final

TEXT_BYTES_MAX: Final = 8_192
"""Longest error text stored, in bytes of UTF-8."""

_CUT = " … (cut)"
_PASSWORD = re.compile(r"(://[^:/@\s]*):[^@/\s]+@")


def clean(text: str, limit: int = TEXT_BYTES_MAX) -> str:
    """``text`` without NULs, lone surrogates and passwords in URLs, cut to ``limit`` bytes at a character's border."""
    whole = len(text) <= limit
    text = _PASSWORD.sub(r"\1:***@", text[:limit].replace("\x00", "\\x00"))
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) > limit or not whole:
        raw = raw[: limit - len(_CUT.encode())]
        return raw.decode("utf-8", "ignore") + _CUT
    return raw.decode()


def describe(error: BaseException) -> tuple[str, str]:
    """``("package.Exception at module:function", "its text")``, both cleaned; the place is the innermost frame that is
    neither a library's nor Relevo's, where the reader has to look. Never raises."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    place = _place(error.__traceback__)
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001 - a broken __str__ must not hide the error it belongs to
        text = f"(its text could not be made: {type(failed).__name__})"
    return clean(f"{name} at {place}" if place else name, 500), clean(text)


def _place(trace: TracebackType | None) -> str | None:
    place = None
    for frame, _ in traceback.walk_tb(trace):
        module = str(frame.f_globals.get("__name__", ""))
        file = frame.f_code.co_filename
        if (
            "site-packages" not in file
            and module.partition(".")[0] not in _LIBRARIES
            and not file.startswith("<frozen")
        ):
            place = f"{module}:{frame.f_code.co_qualname}"
    return place


_LIBRARIES = {"relevo", "asyncio", "concurrent", "contextlib", "threading", "contextvars"}
