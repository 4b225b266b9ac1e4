"""Declarations: what a class becomes, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from relevo import command, event
from relevo.errors import ConfigError, RefusedError
from relevo.event import REGISTRY, Declaration, Registry, declaration_of, encode_key


def test_topic_follows_from_the_type() -> None:
    """The type without its last segment, unless topic= says otherwise."""

    @event("test_event.topic.given", key="id")
    @dataclass
    class A:
        id: int

    @command("test_event.topic.other", topic="elsewhere", schema_version=3)
    @dataclass
    class B:
        id: int

    first, second = declaration_of(A), declaration_of(B(1))
    assert (first.topic, first.kind, first.schema_version, first.key_of(A(7))) == ("test_event.topic", "event", 1, b"7")
    assert (second.topic, second.kind, second.schema_version, second.key_of(B(7))) == ("elsewhere", "command", 3, None)
    assert REGISTRY.find("test_event.topic.given") is first
    assert first in list(REGISTRY)


def test_every_kind_of_class_can_be_declared() -> None:
    """dataclass, msgspec Struct, attrs class, pydantic model; the class itself is returned unchanged."""

    class S(msgspec.Struct):
        id: int

    @attrs.define
    class T:
        id: int

    class P(pydantic.BaseModel):
        id: int

    for number, cls in enumerate((S, T, P)):
        assert event(f"test_event.kind.n{number}", key="id")(cls) is cls
        assert declaration_of(cls(id=5)).key_of(cls(id=5)) == b"5"


def test_a_subclass_is_not_declared_by_its_parent() -> None:
    """An event's subclass would travel under the parent's type without anybody having said so."""

    @event("test_event.parent.made")
    @dataclass
    class Parent:
        pass

    class Child(Parent):
        pass

    with pytest.raises(RefusedError, match=r"Child is not declared: its base .*Parent is, as"):
        declaration_of(Child())


def test_refused_declarations() -> None:
    """Names no broker takes, and a type of one segment without a topic."""
    for name in ("", "a b", "ä", "x" * 201, "a/b", "a.b\n"):
        with pytest.raises(RefusedError):
            event(name)
    with pytest.raises(RefusedError, match="one segment"):
        event("placed")
    with pytest.raises(RefusedError, match="topic"):
        event("a.b", topic="no good")
    with pytest.raises(RefusedError, match="object is not declared"):
        declaration_of(object())


def test_one_type_two_classes() -> None:
    """Two classes of one name are refused; a module that is loaded again is not."""
    registry = Registry()
    registry.add(Declaration(int, "a.b", "event", "a", None, 1))
    registry.add(Declaration(int, "a.b", "event", "a", None, 2))
    found = registry.find("a.b")
    assert found is not None
    assert found.schema_version == 2
    with pytest.raises(ConfigError, match=r"declared twice: by builtins\.int and builtins\.str"):
        registry.add(Declaration(str, "a.b", "event", "a", None, 1))


def test_keys() -> None:
    """Text in UTF-8, ids and integers in their text form, bytes as they are; None is no key, and "" is one."""
    some_id = UUID("6f1d7f5e-3b52-5c1d-9b0a-8f5f0a4c2e11")
    cases = [
        (None, None),
        ("", b""),
        ("ñ", "ñ".encode()),
        (b"\0", b"\0"),
        (-7, b"-7"),
        (some_id, str(some_id).encode()),
    ]
    assert [encode_key(value) for value, _ in cases] == [expected for _, expected in cases]
    for bad in (True, 1.5, object(), ["a"], "\ud800"):
        with pytest.raises(RefusedError, match="order_id"):
            encode_key(bad, path="order_id")


def test_key_by_function() -> None:
    """A function of the instance may make the key."""

    @event("test_event.function.made", key=lambda data: f"{data.a}/{data.b}")
    @dataclass
    class Both:
        a: int
        b: int

    assert declaration_of(Both).key_of(Both(1, 2)) == b"1/2"
