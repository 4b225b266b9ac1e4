"""Declaring what happens: ``@event`` and ``@command``, and the registry of declared types.

A declaration works on dataclasses, ``msgspec.Struct``, attrs classes and pydantic models; it changes nothing about the
class but the attribute ``__relevo__``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from relevo.errors import ConfigError, RefusedError
from relevo.naming import Kind, check_name

C = TypeVar("C", bound=type)
KeyOf = str | Callable[[Any], object] | None


@dataclass(frozen=True, slots=True)
class Declaration:
    """What ``@event`` or ``@command`` said about a class."""

    cls: type
    type: str
    kind: Kind
    topic: str
    key: KeyOf
    schema_version: int

    def key_of(self, data: object) -> bytes | None:
        """The key of one instance, as bytes: text in UTF-8, UUIDs and integers in their usual text form."""
        if self.key is None:
            return None
        value = self.key(data) if callable(self.key) else getattr(data, self.key)
        return encode_key(value, path=self.key if isinstance(self.key, str) else "key")


def encode_key(value: object, *, path: str = "key") -> bytes | None:
    """Bytes of a key. ``None`` stays ``None`` (no order); anything without an obvious text form is refused."""
    match value:
        case None:
            return None
        case bytes():
            return value
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise RefusedError("a lone surrogate is not text", path=path) from None
        case bool():
            pass
        case int() | UUID():
            return str(value).encode()
    raise RefusedError(f"a key is a str, bytes, int or UUID, not {type(value).__name__}", path=path)


class Registry:
    """The declared types by name. One per process is the rule; a test may make its own."""

    def __init__(self) -> None:
        self._by_type: dict[str, Declaration] = {}

    def add(self, declaration: Declaration) -> None:
        known = self._by_type.get(declaration.type)
        if known is not None and _where(known.cls) != _where(declaration.cls):
            raise ConfigError(
                f"the type {declaration.type!r} is declared twice: by {_where(known.cls)} and "
                f"{_where(declaration.cls)}. Give one of them another name"
            )
        self._by_type[declaration.type] = declaration

    def find(self, type_name: str) -> Declaration | None:
        return self._by_type.get(type_name)

    def __iter__(self) -> Iterator[Declaration]:
        return iter(self._by_type.values())


REGISTRY = Registry()


def declaration_of(data_or_class: object) -> Declaration:
    """The declaration of an instance or class; raises ``RefusedError`` if there is none."""
    cls = data_or_class if isinstance(data_or_class, type) else type(data_or_class)
    found = cls.__dict__.get("__relevo__")
    if isinstance(found, Declaration):
        return found
    raise RefusedError(f"{cls.__qualname__} is not declared: put @event(...) or @command(...) above the class")


def event(type: str, *, key: KeyOf = None, topic: str | None = None, schema_version: int = 1) -> Callable[[C], C]:
    """Declare a class as an event, a fact in the past tense with any number of subscribers.

    ``type``: dotted name, ``"shop.order.placed"``. ``topic``: where it goes; the type without its last segment
    (``"shop.order"``) if not given. ``key``: the name of the attribute (or a function of the instance) that orders
    messages among themselves; ``None`` means no order.
    """
    return _declare("event", type, key, topic, schema_version)


def command(type: str, *, key: KeyOf = None, topic: str | None = None, schema_version: int = 1) -> Callable[[C], C]:
    """Declare a class as a command, an imperative with exactly one kind of handler. Arguments as for ``event``."""
    return _declare("command", type, key, topic, schema_version)


def _declare(kind: Kind, type_name: str, key: KeyOf, topic: str | None, schema_version: int) -> Callable[[C], C]:
    check_name("type", type_name)
    head = type_name.rpartition(".")[0]
    if topic is None and not head:
        raise RefusedError(
            f"type {type_name!r} has one segment, so no topic follows from it: give topic=, or use a dotted type"
        )
    where = check_name("topic", topic if topic is not None else head)

    def decorate(cls: C) -> C:
        declaration = Declaration(cls, type_name, kind, where, key, schema_version)
        REGISTRY.add(declaration)
        cls.__relevo__ = declaration  # type: ignore[attr-defined]
        return cls

    return decorate


def _where(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
