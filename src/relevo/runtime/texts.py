"""Errors as text that every database keeps: no NUL, no lone surrogate, bounded. Nothing here raises, even if the error
does: booking a failure cannot fail."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final

from relevo.errors import MisuseError
from relevo.redacting import redact_text
from relevo.total import cause_of, name_of, text_of, text_of_error

TEXT_BYTES_MAX: Final = 8_192
"""Longest error text stored, in bytes of UTF-8."""

_CUT = " … (cut)"
_TRACE = BaseException.__dict__["__traceback__"].__get__
_NAME_MAX = 300


def clean(text: object, limit: int = TEXT_BYTES_MAX) -> str:
    """``text`` without NULs, lone surrogates and passwords in URLs, cut to ``limit`` bytes at a character's border.
    What is no text is made one first."""
    text = text_of(text)
    whole = len(text) <= limit
    text = redact_text(text[:limit].replace("\x00", "\\x00"))
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) > limit or not whole:
        raw = raw[: limit - len(_CUT.encode())]
        return raw.decode("utf-8", "ignore") + _CUT
    return raw.decode()


def headline(text: str, lines: int = 3) -> str:
    """``text`` in one line: its first ``lines`` lines that are not empty, and how many there are besides."""
    if "\n" not in text:
        return text
    found = [line.strip() for line in text.split("\n") if line.strip()]
    more = f" (and {len(found) - lines} more lines)" if len(found) > lines else ""
    return ": ".join(each.rstrip(":") for each in found[:lines]) + more


def describe(error: BaseException, where: str = "") -> tuple[str, str]:
    """``("package.Exception at module:function", "its text")``, both cleaned; the place is the innermost frame that is
    neither a library's nor Relevo's, where the reader has to look. ``where``: the place if no frame tells. The place of
    a misuse has its line, too. Never raises."""
    kind = type(error)
    name = clean(name_of(kind), _NAME_MAX)
    place = _place_of(error, line=issubclass(kind, MisuseError)) or where
    text = text_of_error(error)
    if issubclass(kind, BaseExceptionGroup):
        text = f"{text}: {_members(error)}"
    return clean(f"{name} at {place}" if place else name, 500), clean(text)


def _members(group: BaseException) -> str:
    """What the first few errors of a group are."""
    try:
        members = BaseExceptionGroup.__dict__["exceptions"].__get__(group)
        return "; ".join(clean(member, 500) for member in members[:3])
    except BaseException:  # noqa: BLE001 - see above
        return "(its members cannot be read)"


def _place_of(error: BaseException, *, line: bool) -> str | None:
    """In the error's own traceback, or in that of what caused it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        place = _place(_TRACE(cause), line=line)
        if place is not None:
            return place
        cause = cause_of(cause)
    return None


def _place(trace: TracebackType | None, *, line: bool) -> str | None:
    place = None
    for step in _steps(trace):
        code = step.tb_frame.f_code
        module = text_of(dict.get(step.tb_frame.f_globals, "__name__", ""))
        file = code.co_filename
        if (
            "site-packages" not in file
            and not file.endswith(".pyx")
            and module.partition(".")[0] not in _LIBRARIES
            and not file.startswith("<frozen")
        ):
            place = f"{module}:{code.co_qualname}:{step.tb_lineno}" if line else f"{module}:{code.co_qualname}"
    return place


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


_LIBRARIES = {"relevo", "asyncio", "concurrent", "contextlib", "threading", "contextvars"}
