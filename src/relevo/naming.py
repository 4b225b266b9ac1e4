"""Names that every broker takes. Apart from ``relevo.message``, so that declaring an event loads the standard library
only: ``import relevo`` is fast (msgspec alone takes 50 ms where typing_extensions is installed)."""

from __future__ import annotations

import re
from typing import Literal

from relevo.errors import RefusedError

Kind = Literal["event", "command"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")


def check_name(what: str, name: str) -> str:
    """Return ``name`` if it can be a topic, type or consumer name on every broker; raise ``RefusedError`` if not."""
    if not isinstance(name, str):
        raise RefusedError(f"{what} is a name, not {type(name).__name__}")
    if not _NAME.match(name):
        raise RefusedError(f"{what} {name!r} is not usable: 1 to 200 of the characters A-Z a-z 0-9 . _ - are allowed")
    return name


def check_dotted(what: str, name: str) -> str:
    """As ``check_name``, for a name this application chooses: its segments are not empty either."""
    check_name(what, name)
    if not all(name.split(".")):
        raise RefusedError(f"{what} {name!r} is not usable: a segment between its dots is empty")
    return name
