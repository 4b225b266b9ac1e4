"""Which kind of class something is, and the names of its fields; no library is imported for it."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import msgspec

Kind = Literal["pydantic", "struct", "dataclass", "attrs", "namedtuple"]


def is_pydantic(cls: Any) -> bool:
    return hasattr(cls, "model_dump_json") and hasattr(cls, "model_validate_json") and hasattr(cls, "model_fields")


def is_typed_dict(cls: Any) -> bool:
    """Of ``typing`` and of ``typing_extensions``."""
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def kind_of(cls: type) -> Kind | None:
    """The kind of class an event may be of, or ``None``."""
    if is_pydantic(cls):
        return "pydantic"
    if issubclass(cls, msgspec.Struct):
        return "struct"
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if hasattr(cls, "__attrs_attrs__"):
        return "attrs"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "namedtuple"
    return None


def field_names(cls: type) -> tuple[str, ...] | None:
    """The fields of one of those classes, in order, or ``None``."""
    match kind_of(cls):
        case "pydantic":
            return tuple(cls.model_fields)  # type: ignore[attr-defined]
        case "struct":
            return tuple(cls.__struct_fields__)  # type: ignore[attr-defined]
        case "dataclass":
            return tuple(field.name for field in dataclasses.fields(cls))
        case "attrs":
            return tuple(attribute.name for attribute in cls.__attrs_attrs__)  # type: ignore[attr-defined]
        case "namedtuple":
            return tuple(cls._fields)  # type: ignore[attr-defined]
    return None


def title(cls: Any) -> str:
    """What the path to a field of ``cls`` begins with."""
    return str(getattr(cls, "__qualname__", cls)).rpartition("<locals>.")[2]


def shown(cls: type) -> str:
    """The name of a class as errors show it."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
