"""What JSON or PostgreSQL could not keep, found in the data: NUL, lone surrogates, NaN, types without a JSON form."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from relevo.codec.kinds import field_names
from relevo.errors import RefusedError
from relevo.message import check_text

_encoder = msgspec.json.Encoder()
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_STEP = re.compile(r"\['([A-Za-z_]\w*)'\]")
_NUL_TEXT = "a NUL character (U+0000) cannot be stored by PostgreSQL's text and jsonb"


def explain(data: object, *, floats: bool = True) -> None:
    """Raise ``RefusedError`` for the first thing in ``data`` that cannot be kept; return if there is none.

    ``floats``: whether NaN and infinity are such things.
    """
    for path, leaf in _leaves(data, "$", 0):
        if isinstance(leaf, str):
            check_text(leaf, path)
        elif isinstance(leaf, float):
            if floats and not math.isfinite(leaf):
                raise RefusedError(f"{leaf} is not a JSON number", path=path)
        elif leaf is not None and not isinstance(leaf, (bool, bytes)):
            try:
                _encoder.encode(leaf)
            except (TypeError, ValueError, OverflowError) as error:
                raise RefusedError(str(error), path=path) from None


def refuse_nul(payload: bytes) -> None:
    """Raise ``RefusedError`` for a NUL character in a text of the JSON ``payload``."""
    if _NUL.search(payload) is None:
        return
    for path, leaf in _leaves(msgspec.json.decode(payload), "$", 0):
        if isinstance(leaf, str) and "\x00" in leaf:
            raise RefusedError(_NUL_TEXT, path=_STEP.sub(r".\1", path))


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    if depth > 200:
        raise RefusedError("the data is nested deeper than 200 levels", path=path)
    children = _children(value)
    if children is None:
        yield path, value
        return
    for step, child in children:
        if isinstance(child, _Key):
            yield f"{path}{step}", child.value
        else:
            yield from _leaves(child, f"{path}{step}", depth + 1)


@dataclasses.dataclass(frozen=True)
class _Key:
    value: object


def _children(value: object) -> list[tuple[str, Any]] | None:
    if isinstance(value, dict):
        keys: list[tuple[str, Any]] = [(f" (key {key!r})", _Key(key)) for key in value if isinstance(key, (str, float))]
        return keys + [(f"[{key!r}]", child) for key, child in value.items()]
    names = field_names(type(value))
    if names is not None:
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return [(f".{name}", getattr(value, name, None)) for name in names] + [(f".{k}", v) for k, v in extra.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    return None
