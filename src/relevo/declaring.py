"""What ``@event`` and ``@command`` refuse at the declaration. The standard library only; the codec loads with the first
declaration."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any
from uuid import UUID

from relevo.errors import RefusedError
from relevo.naming import check_dotted

_EXAMPLE = '@event("shop.order.placed", key="order_id")'


def check_names(decorator: str, type_name: object, topic: object) -> tuple[str, str]:
    """The type and the topic, which follows from the type if it is not given."""
    if not isinstance(type_name, str):
        what = "the class itself" if isinstance(type_name, type) else type(type_name).__name__
        raise RefusedError(
            f"@{decorator} takes the type's name, not {what}: write {_EXAMPLE.replace('event', decorator, 1)}"
        )
    check_dotted("type", type_name)
    head = type_name.rpartition(".")[0]
    if topic is None and not head:
        raise RefusedError(
            f"type {type_name!r} has one segment, so no topic follows from it: give topic=, or use a dotted type"
        )
    if topic is not None and not isinstance(topic, str):
        raise RefusedError(f"topic is a name, not {type(topic).__name__}")
    return type_name, check_dotted("topic", head if topic is None else topic)


def check_version(schema_version: object) -> int:
    if isinstance(schema_version, bool) or not isinstance(schema_version, int) or not 1 <= schema_version < 2**31:
        raise RefusedError("schema_version must be a whole number from 1 to 2147483647", path="schema_version")
    return schema_version


def check_class(decorator: str, cls: object) -> type:
    """``cls`` if the codec can write and read it. Raises ``RefusedError`` with the path of the field that it cannot."""
    if not isinstance(cls, type):
        hint = ""
        if typing.get_origin(cls) is not None:
            hint = f": declare a subclass, class …({getattr(cls, '__name__', cls)}[…])"
        raise RefusedError(f"@{decorator} stands above a class, not above {_described(cls)}{hint}")
    from relevo import codec

    _check_kind(decorator, cls, codec.kind_of(cls))
    try:
        codec.codec_of(cls)
    except codec.UnresolvedError:
        pass  # a forward reference: asked again at the first append and at the start of a consumer
    return cls


def _check_kind(decorator: str, cls: type, kind: str | None) -> None:
    from relevo import codec

    if kind is None:
        what = "a plain class, and its fields cannot be seen"
        if codec.is_typed_dict(cls):
            what = "a TypedDict, and its instances are dicts without a type"
        elif hasattr(cls, "parse_raw") and hasattr(cls, "__fields__"):
            what = "a model of pydantic's version 1"
        raise RefusedError(
            f"{cls.__qualname__} is {what}: make it a dataclass, a msgspec.Struct, an attrs class or a pydantic model. "
            f"@{decorator} goes above @dataclass"
        )
    mark = {"dataclass": "__dataclass_fields__", "attrs": "__attrs_attrs__"}.get(kind)
    if mark is not None and mark not in cls.__dict__ and _annotated(cls):
        made = "@dataclass" if kind == "dataclass" else "attrs' decorator"
        raise RefusedError(
            f"{cls.__qualname__} has annotations that are no fields: its base is decorated with {made}, and it is not. "
            f"Put {made} above the class, and @{decorator} above that"
        )


def _annotated(cls: type) -> bool:
    """Whether the class itself has annotations."""
    try:
        return bool(inspect.get_annotations(cls))
    except NameError:  # a forward reference, where annotations are evaluated when they are asked for
        return True


def _described(value: object) -> str:
    return "a function" if inspect.isroutine(value) else f"an object of type {type(value).__name__}"


def check_key(cls: type, key: object) -> None:
    """Raise ``RefusedError`` for a key that no instance has, or that can never be one."""
    if key is None:
        return
    if isinstance(key, str):
        _check_attribute(cls, key)
    elif callable(key):
        _check_function(cls, key)
    else:
        raise RefusedError(
            f"a key is the name of an attribute or a function of the instance, not {type(key).__name__}", path="key"
        )


def _check_attribute(cls: type, key: str) -> None:
    from relevo import codec

    names = codec.field_names(cls) or ()
    if key not in names and not hasattr(cls, key) and not _assigned(cls, key):
        hint = f"write key=lambda event: event.{key}" if "." in key else f"it has {', '.join(names) or 'no fields'}"
        raise RefusedError(f"{cls.__qualname__} has no attribute {key!r}: {hint}", path="key")
    if key not in names:
        if inspect.isroutine(inspect.getattr_static(cls, key, None)):
            raise RefusedError(
                f"{cls.__qualname__}.{key} is a method: make it a property, or write key=lambda event: event.{key}()",
                path="key",
            )
        return
    try:
        annotation = typing.get_type_hints(cls).get(key, Any)
    except Exception:  # noqa: BLE001 - a forward reference; the first append tells
        return
    if not _may_be_key(annotation):
        raise RefusedError(
            f"{cls.__qualname__}.{key} is a {_text(annotation)}, and a key is a str, bytes, int or UUID: name another "
            "attribute, or give a function that makes one of these",
            path="key",
        )


def _assigned(cls: Any, key: str) -> bool:
    """Whether the class makes attributes that only an instance has, this one among them."""
    if hasattr(cls, "model_fields"):
        return cls.model_config.get("extra") == "allow" or key in getattr(cls, "__private_attributes__", ())
    if hasattr(cls, "__getattr__"):
        return True
    makers = ("__init__", "__post_init__", "__attrs_post_init__", "model_post_init")
    codes = [getattr(getattr(cls, name, None), "__code__", None) for name in makers]
    return any(code is not None and key in code.co_names for code in codes)


def _may_be_key(annotation: Any) -> bool:
    """False for what is certainly none."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union or origin is types.UnionType:
        return any(part is not type(None) and _may_be_key(part) for part in parts)
    if origin is typing.Literal:
        return any(isinstance(part, (str, bytes, int)) for part in parts)
    if hasattr(annotation, "__supertype__"):
        return _may_be_key(annotation.__supertype__)
    cls = origin or annotation
    if not isinstance(cls, type) or cls in (object, Any):
        return True
    return issubclass(cls, (str, bytes, int, UUID)) and not issubclass(cls, bool)


def _text(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _check_function(cls: type, key: Callable[..., object]) -> None:
    if inspect.iscoroutinefunction(key) or inspect.isgeneratorfunction(key) or inspect.isasyncgenfunction(key):
        raise RefusedError("the key's function is plain, not async and no generator", path="key")
    if isinstance(key, type) and not issubclass(key, (str, bytes, int, UUID)):
        raise RefusedError(f"a key is a str, bytes, int or UUID, not a {key.__qualname__}", path="key")
    try:
        signature = inspect.signature(key)
    except (TypeError, ValueError):
        return  # a builtin that does not say
    try:
        signature.bind(cls)
    except TypeError:
        raise RefusedError(
            f"the key's function must take the instance alone, and takes {signature}", path="key"
        ) from None
