"""``[broker.options]`` as they are given: what is the same for every broker that has options of its own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from relevo.errors import ConfigError

MOVED: Final[Mapping[str, str]] = {
    "send_timeout_s": "relay.send_timeout_s: one time for how long a send may take and how long before the end of its "
    "lease a relay stops sending",
}

T = TypeVar("T", bound=msgspec.Struct)


def refuse_moved(options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` that names the new place of an option that has another one by now."""
    for name, place in MOVED.items():
        if name in options:
            raise ConfigError(f"broker.options: {name!r} is not set here any more. Set {place}")


def options_as(kind: type[T], options: Mapping[str, Any], broker: str) -> T:
    """The options as ``kind``; ``broker``: its name in errors. Raises ``ConfigError`` naming the nearest known option,
    or what is wrong with a value's type."""
    refuse_moved(options)
    known = kind.__struct_fields__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(known)}"
            raise ConfigError(f"broker.options: {broker} has no option {name!r}{hint}")
    try:
        return msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"broker.options: {error}") from None
