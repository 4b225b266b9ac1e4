"""The JSON codec: data to bytes once, at the append; bytes to data once, at the handler.

msgspec writes dataclasses, Structs and attrs classes; pydantic models write and read themselves. What JSON or
PostgreSQL could not keep is refused with the path into the data. The happy path pays two substring searches for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from relevo.errors import RefusedError
from relevo.message import check_text

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


class UndecodableError(Exception):
    """The payload is not what the handler's type expects; ``str()`` says where."""


def encode(data: object) -> bytes:
    """JSON bytes of ``data``. Raises ``RefusedError`` with a path for an unknown type, NUL, lone surrogate, NaN or
    infinity. Pure and thread-safe."""
    try:
        payload = data.model_dump_json().encode() if _is_pydantic(data) else _encoder.encode(data)  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _explain(data)
        raise RefusedError(str(error), path="$") from error
    if b"\\u0000" in payload or b"null" in payload:  # NaN and infinity are written as null
        _explain(data)
    return payload


def decode(payload: bytes | None, cls: type[T]) -> T:
    """An instance of ``cls`` from JSON bytes; raises ``UndecodableError`` with msgspec's or pydantic's path."""
    if payload is None:
        raise UndecodableError("the payload is empty (a tombstone), and the handler expects data")
    try:
        if hasattr(cls, "model_validate_json"):
            return cls.model_validate_json(payload)  # type: ignore[attr-defined, no-any-return]
        return msgspec.json.decode(payload, type=cls)
    except (ValueError, msgspec.MsgspecError) as error:
        raise UndecodableError(str(error)) from error


def _is_pydantic(data: object) -> bool:
    return hasattr(data, "model_dump_json")


def _explain(data: object) -> None:
    """Raise ``RefusedError`` for the first thing in ``data`` that cannot be kept; return if there is none."""
    for path, leaf in _leaves(data, "$", 0):
        if isinstance(leaf, str):
            check_text(leaf, path)
        elif isinstance(leaf, float):
            if not math.isfinite(leaf):
                raise RefusedError(f"{leaf} is not a JSON number", path=path)
        elif leaf is not None and not isinstance(leaf, (bool, bytes)):
            try:
                _encoder.encode(leaf)
            except (TypeError, ValueError, OverflowError) as error:
                raise RefusedError(str(error), path=path) from None


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
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    names = _field_names(value)
    if names is None:
        return None
    return [(f".{name}", getattr(value, name, None)) for name in names]


def _field_names(value: object) -> list[str] | None:
    cls = type(value)
    if _is_pydantic(value):
        return list(cls.model_fields)  # type: ignore[attr-defined]
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    attributes = getattr(cls, "__attrs_attrs__", None)
    if attributes is not None:
        return [attribute.name for attribute in attributes]
    return None
