"""Declaring what happens: ``@event`` and ``@command``, and the registry of declared types.

A declaration works on dataclasses, ``msgspec.Struct``, attrs classes and pydantic models; it changes nothing about the
class but the attribute ``__relevo__``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from relevo.declaring import check_class, check_key, check_names, check_version
from relevo.errors import ConfigError, RefusedError
from relevo.naming import Kind

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
        """The key of one instance, as bytes: text in UTF-8, UUIDs and integers in their usual text form. Raises
        ``RefusedError`` for what is no key, and for an attribute or function that raises."""
        if self.key is None:
            return None
        try:
            value = self.key(data) if callable(self.key) else getattr(data, self.key)
        except Exception as error:
            what = repr(self.key) if isinstance(self.key, str) else "the key's function"
            raise RefusedError(
                f"{what} of {self.cls.__qualname__} raised {type(error).__name__}, so there is no key", path="key"
            ) from error
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
    if isinstance(found, Declaration) and found.cls is cls:
        return found
    raise RefusedError(f"{cls.__qualname__} is not declared: {_why_not(cls)}")


def _why_not(cls: type) -> str:
    inherited = getattr(cls, "__relevo__", None)
    if not isinstance(inherited, Declaration):
        return "put @event(...) or @command(...) above the class"
    if "__relevo__" in cls.__dict__:
        return "the decorator above @event made another class of it. Put @event above all others"
    return (
        f"its base {inherited.cls.__qualname__} is, as {inherited.type!r}. A subclass has a type of its own: put "
        "@event(...) above it, too"
    )


def event(type: str, *, key: KeyOf = None, topic: str | None = None, schema_version: int = 1) -> Callable[[C], C]:
    """Declare a class as an event, a fact in the past tense with any number of subscribers.

    ``type``: dotted name, ``"shop.order.placed"``. ``topic``: where it goes; the type without its last segment
    (``"shop.order"``) if not given. ``key``: the name of the attribute (or a function of the instance) that orders
    messages among themselves; ``None`` means no order.

    Raises ``RefusedError`` for names no broker takes, a key no instance has, and a class that could not be read back
    from what would be written of it, with the path of the field; ``ConfigError`` for a second declaration.
    """
    return _declare("event", type, key, topic, schema_version)


def command(type: str, *, key: KeyOf = None, topic: str | None = None, schema_version: int = 1) -> Callable[[C], C]:
    """Declare a class as a command, an imperative with exactly one kind of handler. Arguments as for ``event``."""
    return _declare("command", type, key, topic, schema_version)


def _declare(kind: Kind, type_name: str, key: KeyOf, topic: str | None, schema_version: int) -> Callable[[C], C]:
    type_name, where = check_names(kind, type_name, topic)
    check_version(schema_version)

    def decorate(cls: C) -> C:
        check_class(kind, cls)
        check_key(cls, key)
        declaration = Declaration(cls, type_name, kind, where, key, schema_version)
        known = cls.__dict__.get("__relevo__")
        if isinstance(known, Declaration) and known.cls is cls and (known.type, known.kind) != (type_name, kind):
            raise ConfigError(
                f"{cls.__qualname__} is declared already, as the {known.kind} {known.type!r}: a class has one type"
            )
        REGISTRY.add(declaration)
        cls.__relevo__ = declaration  # type: ignore[attr-defined]
        return cls

    return decorate


def _where(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
