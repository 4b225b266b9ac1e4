"""Dataclasses with ``InitVar``s: their fields are written, and an instance is made of these without ``__init__`` and
``__post_init__``, whose other arguments are not known."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import msgspec

INIT_VAR: Any = dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]


def has_init_vars(cls: type) -> bool:
    return any(field._field_type is INIT_VAR for field in getattr(cls, "__dataclass_fields__", {}).values())


def stand_in(cls: Any) -> type[msgspec.Struct]:
    """A Struct with the fields of ``cls``, its ``InitVar``s aside."""
    hints = typing.get_type_hints(cls, include_extras=True)
    required: list[Any] = []
    optional: list[Any] = []
    for field in dataclasses.fields(cls):
        if field.default_factory is not dataclasses.MISSING:
            default = msgspec.field(default_factory=field.default_factory)
        elif field.default is not dataclasses.MISSING:
            default = msgspec.field(default=field.default)
        else:
            required.append((field.name, hints[field.name]))
            continue
        optional.append((field.name, hints[field.name], default))
    return msgspec.defstruct(cls.__qualname__, [*required, *optional], module=cls.__module__)


def reader(cls: type, struct: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    decode = msgspec.json.Decoder(struct).decode
    names = struct.__struct_fields__

    def read(payload: bytes) -> Any:
        found = decode(payload)
        made: Any = object.__new__(cls)
        for name in names:
            object.__setattr__(made, name, getattr(found, name))  # frozen ones too
        return made

    return read
