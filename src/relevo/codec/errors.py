"""What the codec raises beside ``RefusedError``, and the texts of others' errors without the values in them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from relevo.errors import RefusedError

_OWN_WORDS = {"value_error", "assertion_error"}
"""Kinds of pydantic errors whose text an application wrote: it may hold the value."""

_VALUE = re.compile(r"^(Invalid (?:enum )?value) .*?(?= - at `|\Z)", re.DOTALL)

_SHOWN_MAX = 3


class UndecodableError(Exception):
    """The payload is not what the handler's type expects; ``str()`` says where."""


class UnresolvedError(RefusedError):
    """A name in the class's annotations does not exist yet (a forward reference), or not at run time."""


def reason(error: Exception) -> str:
    """Why a payload could not be decoded, in one line with the path, without the value at fault."""
    details = getattr(error, "errors", None)
    if callable(details):
        try:
            return _pydantic_reason(details(include_url=False, include_context=False, include_input=False))
        except Exception:  # noqa: BLE001 - an error of the error's own
            return type(error).__name__
    if not isinstance(error, (msgspec.MsgspecError, UnicodeDecodeError)):
        return f"{type(error).__name__} while the object was made"
    text = str(error)
    if error.__cause__ is not None:  # raised by the class's own __post_init__
        _, mark, where = text.rpartition(" - at ")
        return f"{type(error.__cause__).__name__} while the object was made{mark}{where}"
    return _VALUE.sub(r"\1", text)


def placed(reason: str) -> tuple[str, str]:
    """The path in what ``reason`` returned, ``"$"`` if there is none, and the rest of it."""
    text, _, at = reason.rpartition(" - at ")
    if text:  # msgspec's: `$.lines[...]`, or `key` in `$.prices`
        what, _, path = at.replace("`", "").rpartition("$")
        return f"${path}{' (key)' if what.startswith('key') else ''}", text
    path, mark, rest = reason.partition(": ")
    return (path, rest) if mark and path.startswith("$") else ("$", reason)


def _pydantic_reason(details: list[dict[str, Any]]) -> str:
    told = []
    for each in details[:_SHOWN_MAX]:
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in each["loc"])
        kind = str(each["type"])
        told.append(f"${path}: {kind if kind in _OWN_WORDS or 'tag' in kind else each['msg']}")
    more = f" (and {len(details) - _SHOWN_MAX} more)" if len(details) > _SHOWN_MAX else ""
    return "; ".join(told) + more
