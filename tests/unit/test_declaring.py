"""What a declaration refuses, at once and with words: the row of mistakes a new user makes (B11)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, NewType, Protocol, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from relevo import Consumer, Event, Message, Outbox, command, event
from relevo.errors import ConfigError, MisuseError, RefusedError
from relevo.event import REGISTRY, declaration_of
from relevo.outbox.building import build

T = TypeVar("T")
OrderId = NewType("OrderId", int)


@event("declaring.order.placed", key="order_id")
@dataclass(frozen=True)
class Placed:
    order_id: int
    note: str = ""


@event("declaring.order.paid", key="order_id")
@dataclass(frozen=True)
class Paid:
    order_id: int


@command("declaring.charge")
@dataclass(frozen=True)
class Charge:
    order_id: int


class Undeclared(Placed):
    pass


@dataclass
class Fields:
    order_id: OrderId
    price: float
    at: dt.datetime
    total: Decimal | None
    flag: bool
    lines: list[str]
    maybe: UUID | None
    any_thing: Any
    short: Annotated[str, "short"]

    CONSTANT = "x"

    @property
    def both(self) -> str:
        return f"{self.order_id}/{self.at}"

    def method(self) -> str:
        return "x"


@pytest.mark.parametrize("kind", [event, command])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("nope", "has no attribute 'nope': it has order_id, price, at"),
        ("", "has no attribute ''"),
        ("order_id.value", "lambda event: event.order_id.value"),
        ("method", "is a method"),
        ("price", "is a float"),
        ("at", "is a datetime"),
        ("total", "a key is a str, bytes, int or UUID"),
        ("flag", "is a bool"),
        ("lines", "a key is a str, bytes, int or UUID"),
        (5, "the name of an attribute or a function"),
        (["order_id"], "the name of an attribute or a function"),
        (lambda: "x", "must take the instance alone"),
        (lambda a, b: "x", "must take the instance alone"),
        (float, "not a float"),
    ],
)
def test_keys_that_cannot_be(kind: Any, key: Any, words: str) -> None:
    """Refused where it is written, with the names there are."""
    with pytest.raises(RefusedError, match=words):
        kind("declaring.keys.wrong", key=key)(Fields)
    assert REGISTRY.find("declaring.keys.wrong") is None
    assert "__relevo__" not in Fields.__dict__


def test_an_async_key_is_refused() -> None:
    async def key(data: Fields) -> str:
        return "x"

    with pytest.raises(RefusedError, match="not async"):
        event("declaring.keys.wrong", key=key)(Fields)


@pytest.mark.parametrize(
    "key",
    ["order_id", "both", "maybe", "any_thing", "short", "CONSTANT", lambda data: "x", str, functools.partial(str)],
)
def test_keys_that_can_be(key: Any) -> None:
    """A field, a property, a constant, a function; a field of any type is asked at the append."""
    made = dataclass(type("Fields", (Fields,), {}))
    event(f"declaring.keys.{len(list(REGISTRY))}", key=key)(made)


def test_keys_of_every_kind_of_class() -> None:
    """Fields, properties and attributes that an instance gets when it is made."""

    class Model(pydantic.BaseModel):
        a: int

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def computed(self) -> str:
            return str(self.a)

    class Open(pydantic.BaseModel, extra="allow"):
        a: int

    @attrs.define(slots=False)
    class Slug:
        a: int

        def __attrs_post_init__(self) -> None:
            self.slug = str(self.a)

    @dataclass
    class Slot:
        a: int

        def __post_init__(self) -> None:
            self.slug = str(self.a)

    class Struct(msgspec.Struct):
        a: int

        @property
        def slug(self) -> str:
            return str(self.a)

    good: list[tuple[Any, str]] = [
        *((Model, "computed"), (Model, "a"), (Open, "extra"), (Slug, "slug"), (Slot, "slug"), (Struct, "slug")),
    ]
    for cls, key in good:
        event(f"declaring.kinds.{cls.__name__}", key=key)(cls)
    for cls in (Model, Slug, Slot, Struct):
        with pytest.raises(RefusedError, match=r"has no attribute 'nope': it has a"):
            event("declaring.kinds.nope", key="nope")(cls)


@pytest.mark.parametrize(
    "name", ["shop..x", ".shop.x", "shop.x.", ".", "..", "a b.c", "shop.ä", "shop/x.y", "", "x" * 201, "shop.x\n", "*"]
)
def test_names_that_cannot_be(name: str) -> None:
    """As a type, as a topic, as a selector of a handler."""
    with pytest.raises(RefusedError):
        event(name, topic="declaring")
    with pytest.raises(RefusedError):
        command("declaring.x", topic=name)
    if name != "*":
        with pytest.raises(ConfigError):
            Consumer("declaring", ["declaring"]).on(name)


@pytest.mark.parametrize("pattern", ["shop..*", "a b.*", "*.", ".*", "shop.*\n", "ä*"])
def test_patterns_that_match_no_type(pattern: str) -> None:
    with pytest.raises(ConfigError):
        Consumer("declaring", ["declaring"]).on(pattern)


def test_upper_case_and_dashes_are_names() -> None:
    event("Declaring.Order-Line_1.placed")(dataclass(type("Upper", (), {"__annotations__": {"a": int}})))
    Consumer("declaring", ["declaring"]).on("Declaring.*.x")


@pytest.mark.parametrize("decorator", [event, command])
def test_bare_decorators(decorator: Any) -> None:
    """`@event` without its parentheses, over a class or with something else in them."""
    for wrong in (Fields, None, 5, lambda: None):
        with pytest.raises(RefusedError, match=rf'write @{decorator.__name__}\("shop.order.placed"'):
            decorator(wrong)
    with pytest.raises(TypeError, match="'type'"):
        decorator()
    for wrong in (lambda: None, Fields(OrderId(1), 1.0, dt.datetime.now(), None, True, [], None, 1, "x"), "Fields"):
        with pytest.raises(RefusedError, match="stands above a class"):
            decorator("declaring.bare.x")(wrong)
    for version in (0, -1, "1", True, 2**31, None):
        with pytest.raises(RefusedError, match="schema_version"):
            decorator("declaring.bare.x", schema_version=version)
    with pytest.raises(RefusedError, match="topic"):
        decorator("declaring.bare.x", topic=5)


def test_classes_that_cannot_be() -> None:
    """A plain class, one whose base alone is decorated, a TypedDict, an enum, an alias of a generic."""

    class Plain:
        a: int = 1

    class Half(Fields):
        more: int

    class Typed(TypedDict):
        a: int

    @dataclass
    class Page(Generic[T]):
        items: list[T]

    class Struct(msgspec.Struct, Generic[T]):
        item: T

    class Model(pydantic.BaseModel, Generic[T]):
        item: T

    for cls, words in (
        (Plain, "plain class"),
        (Half, "annotations that are no fields"),
        (Typed, "TypedDict"),
        (type("Sub", (str,), {}), "plain class"),
        (dict, "plain class"),
        (Page, "is generic"),
        (Page[int], "declare a subclass"),
        (Struct, "is generic"),
        (Model, "is generic"),
    ):
        with pytest.raises(RefusedError, match=words):
            event("declaring.classes.wrong")(cls)  # type: ignore[type-var]

    @dataclass
    class Numbers(Page[int]):
        pass

    assert event("declaring.classes.numbers")(Numbers) is Numbers
    assert event("declaring.classes.model")(Model[int]) is Model[int]


def test_the_order_of_decorators() -> None:
    """`@dataclass` above `@event` is refused; so is a decorator that makes another class of a declared one."""
    with pytest.raises(RefusedError, match="goes above @dataclass"):

        @dataclass
        @event("declaring.order_of.wrong")
        class Wrong:
            a: int

    @event("declaring.order_of.slots")
    @dataclass
    class Kept:
        a: int

    other = dataclasses.make_dataclass("Kept", ["a"], namespace={"__relevo__": Kept.__dict__["__relevo__"]})
    with pytest.raises(RefusedError, match="made another class of it"):
        declaration_of(other(1))


def test_one_class_two_types() -> None:
    with pytest.raises(ConfigError, match=r"declared already, as the event 'declaring\.order\.placed'"):
        event("declaring.order.other")(Placed)
    with pytest.raises(ConfigError, match="declared already"):
        command("declaring.order.placed")(Placed)
    assert REGISTRY.find("declaring.order.other") is None
    with pytest.raises(ConfigError, match="declared twice"):
        event("declaring.order.placed")(dataclass(type("Another", (), {"__annotations__": {"a": int}})))


@pytest.mark.parametrize("key", [lambda data: data.nope, lambda data: 1 / 0, lambda data: 1.5, lambda data: [1]])
def test_keys_that_fail_at_the_append(key: Any) -> None:
    """What a function does cannot be seen before; it is a refusal with words then, too."""

    @event("declaring.keys.failing", key=key)
    @dataclass
    class Failing:
        a: int

    with pytest.raises(RefusedError) as caught:
        build(Failing(1), 1000)
    assert caught.value.path == "key"


# --- Handlers --------------------------------------------------------------------------------------------------------


class HasOrder(Protocol):
    order_id: int


def one(annotation: Any) -> Any:
    def handle(event: Any) -> None: ...

    handle.__annotations__["event"] = annotation
    return handle


@pytest.mark.parametrize(
    ("what", "annotation"),
    [
        (Placed, Event[Paid]),
        (Placed, Event[Undeclared]),
        (Placed, Event[Message]),
        (Placed, Event[int]),
        (Placed, Event[Paid] | None),
        (Placed, Annotated[Event[Paid], "x"]),
        (Placed, "Event[Paid]"),
        (Placed, Placed),
        (Placed, Paid),
        (Placed, Message),
        (Placed, int),
        (Placed, list[Event[Placed]]),
        (Placed, Sequence[Event[Placed]]),
        (Charge, Event[Placed]),
        ("declaring.order.placed", Event[Placed]),
        ("declaring.*", Event[Placed]),
        ("declaring.*", Message),
    ],
)
def test_annotations_of_something_else(what: Any, annotation: Any) -> None:
    """`@on(A)` over a function of `Event[B]`: refused at the declaration, not noticed at the first message."""
    with pytest.raises(ConfigError, match="annotates 'event' as"):
        Consumer("declaring", ["declaring"]).on(what)(one(annotation))


@pytest.mark.parametrize(
    ("what", "annotation"),
    [
        (Placed, Event[Placed]),
        (Placed, "Event[Placed]"),
        (Placed, Event),
        (Placed, Event[Any]),
        (Placed, Event[HasOrder]),
        (Placed, Event[T]),  # type: ignore[valid-type]
        (Placed, Event[Placed | Paid]),
        (Placed, Event[Placed] | Event[Paid]),
        (Placed, Any),
        (Placed, object),
        (Placed, "Event[OnlyForTheTypeChecker]"),
        ("declaring.*", Event[Message]),
        ("declaring.*", Event[Any]),
    ],
)
def test_annotations_that_fit(what: Any, annotation: Any) -> None:
    Consumer("declaring", ["declaring"]).on(what)(one(annotation))


def test_annotations_of_batches() -> None:
    for good in (list[Event[Placed]], Sequence[Event[Placed]], Iterable[Event[Any]], list, Any, "list[Event[Placed]]"):
        Consumer("declaring", ["declaring"]).on_batch(Placed)(one(good))
    for wrong in (Event[Placed], list[Event[Paid]], list[Placed], Sequence[int], Placed, "list[Event[Paid]]"):
        with pytest.raises(ConfigError, match="annotates 'event' as"):
            Consumer("declaring", ["declaring"]).on_batch(Placed)(one(wrong))


def test_annotations_of_local_classes() -> None:
    """Names that exist only where the handler is defined are understood."""

    @event("declaring.local.a")
    @dataclass
    class A:
        a: int

    @event("declaring.local.b")
    @dataclass
    class B:
        a: int

    consumer = Consumer("declaring", ["declaring"])
    with pytest.raises(ConfigError, match="annotates 'event' as"):

        @consumer.on(A)
        def wrong(event: Event[B]) -> None: ...

    with pytest.raises(ConfigError, match="annotates 'event' as"):

        @consumer.on(A)
        def too_soon(event: Event[B]) -> None:
            print(later)

    @consumer.on(A)
    async def right(event: Event[A]) -> None:
        print(later)

    later = "comes later"
    assert len(consumer.handlers) == 1


def test_annotations_behind_a_decorator_and_of_methods() -> None:
    def plain(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(*args: Any) -> Any:
            return function(*args)

        return wrapped

    class Handlers:
        def wrong(self, event: Event[Paid]) -> None: ...

        def right(self, event: Event[Placed]) -> None: ...

    consumer = Consumer("declaring", ["declaring"])
    for wrong in (plain(one("Event[Paid]")), Handlers().wrong):
        with pytest.raises(ConfigError, match="annotates 'event' as"):
            consumer.on(Placed)(wrong)
    consumer.on(Placed)(Handlers().right)


def test_classes_that_no_handler_can_be_for() -> None:
    """Undeclared, a subclass of a declared one, an instance, a function, nothing."""
    for wrong in (Fields, Undeclared, Placed(1), 5, None, lambda event: None, Event[Placed], int):
        with pytest.raises(ConfigError):
            Consumer("declaring", ["declaring"]).on(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="its base Placed is"):
        Consumer("declaring", ["declaring"]).on(Undeclared)


# --- add -------------------------------------------------------------------------------------------------------------


class Handle:
    """As little as an argument in the wrong place needs."""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Outbox().add(Placed(1), Handle()), "the other way round"),  # type: ignore[call-overload]
        (lambda: Outbox().add(Handle(), [Placed(1)]), "add_many"),  # type: ignore[call-overload]
        (lambda: Outbox().add_many(Handle(), Placed(1)), r"one is added with add\(\)"),  # type: ignore[call-overload]
        (lambda: Outbox().add_many([Placed(1)], Handle()), "the other way round"),  # type: ignore[call-overload]
        (lambda: Outbox().add_many(Handle(), Handle()), "a list of events"),  # type: ignore[call-overload]
        (lambda: Outbox().add_message(Handle(), Placed(1)), r"events are added with add\(\)"),  # type: ignore[call-overload]
    ],
)
def test_arguments_in_each_others_place(call: Any, words: str) -> None:
    """Named as what they are, not as "Connection is not declared"."""
    with pytest.raises(MisuseError, match=words):
        call()


def test_what_is_not_declared_is_named() -> None:
    with pytest.raises(RefusedError, match="Fields is not declared"):
        Outbox().add(Handle(), Fields(OrderId(1), 1.0, dt.datetime.now(), None, True, [], None, 1, "x"))  # type: ignore[call-overload]
