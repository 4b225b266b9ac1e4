"""Classes of every kind an event may be of, and every type the codec names, each with values: kind and ordinary."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic

T = typing.TypeVar("T")
U = typing.TypeVar("U")
Fields = Mapping[str, Any]
"""Annotations by name."""


def _dataclass(**options: Any) -> Callable[[Fields], type]:
    def make(fields: Fields) -> type:
        made = dataclasses.make_dataclass("Made", list(fields.items()), **options)
        made.__module__ = __name__
        return made

    return make


def _struct(**options: Any) -> Callable[[Fields], type]:
    return lambda fields: msgspec.defstruct("Made", list(fields.items()), module=__name__, **options)


def _attrs(**options: Any) -> Callable[[Fields], type]:
    def make(fields: Fields) -> type:
        made = attrs.make_class("Made", {name: attrs.field(type=each) for name, each in fields.items()}, **options)
        made.__module__ = __name__
        return made

    return make


def _pydantic(**config: Any) -> Callable[[Fields], type]:
    def make(fields: Fields) -> type:
        given = pydantic.ConfigDict(arbitrary_types_allowed=True, **config)
        made: Any = pydantic.create_model("Made", __config__=given, **{n: (each, ...) for n, each in fields.items()})
        made.__module__ = __name__
        return typing.cast(type, made)

    return make


def _aliased(**options: Any) -> Callable[[Fields], type]:
    def make(fields: Fields) -> type:
        given = {
            name: (each, pydantic.Field(**{option: f"{prefix}{name}" for option, prefix in options.items()}))
            for name, each in fields.items()
        }
        made: Any = pydantic.create_model(
            "Made", __config__=pydantic.ConfigDict(arbitrary_types_allowed=True), **typing.cast(Any, given)
        )
        return typing.cast(type, made)

    return make


def _named_tuple(fields: Fields) -> type:
    return NamedTuple("Made", list(fields.items()))  # type: ignore[misc, no-any-return]


@dataclass(frozen=True)
class Kind:
    """``make``: a class with these fields; ``of``: which of the codec's kinds it is."""

    of: str
    make: Callable[[Fields], type]
    by_alias: str = ""
    """What the arguments of the constructor begin with, where they have aliases."""

    def instance(self, cls: type, values: Mapping[str, Any]) -> Any:
        """An instance, past the checks of pydantic's constructor where it would refuse these values."""
        if self.of != "pydantic":
            return cls(**values)
        try:
            return cls(**{f"{self.by_alias}{name}": value for name, value in values.items()})
        except Exception:
            return typing.cast(Any, cls).model_construct(None, **values)


KINDS: Final[dict[str, Kind]] = {
    "dataclass": Kind("dataclass", _dataclass()),
    "dataclass frozen slots kw_only": Kind("dataclass", _dataclass(frozen=True, slots=True, kw_only=True)),
    "dataclass eq=False": Kind("dataclass", _dataclass(eq=False)),
    "Struct": Kind("struct", _struct()),
    "Struct renamed tagged frozen": Kind("struct", _struct(rename="camel", tag=True, frozen=True)),
    "Struct array_like": Kind("struct", _struct(array_like=True)),
    "Struct strict eq=False gc=False": Kind("struct", _struct(forbid_unknown_fields=True, eq=False, gc=False)),
    "attrs": Kind("attrs", _attrs()),
    "attrs frozen slots": Kind("attrs", _attrs(frozen=True, slots=True)),
    "pydantic": Kind("pydantic", _pydantic()),
    "pydantic strict frozen": Kind("pydantic", _pydantic(strict=True, frozen=True)),
    "pydantic camel forbid": Kind(
        "pydantic", _pydantic(alias_generator=lambda n: f"x{n}", extra="forbid", populate_by_name=True)
    ),
    "pydantic texts": Kind(
        "pydantic",
        _pydantic(
            ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64", ser_json_timedelta="float"
        ),
    ),
    "pydantic constants": Kind("pydantic", _pydantic(ser_json_inf_nan="constants", ser_json_bytes="hex")),
    "pydantic alias": Kind("pydantic", _aliased(alias="a_"), "a_"),
    "pydantic serialization alias": Kind("pydantic", _aliased(serialization_alias="s_")),
    "pydantic two aliases": Kind("pydantic", _aliased(serialization_alias="s_", validation_alias="v_"), "v_"),
    "named tuple": Kind("namedtuple", _named_tuple),
}


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    S = 1
    L = 3


class Mood(enum.StrEnum):
    GOOD = "good"
    BAD = "bad"


class Perm(enum.IntFlag):
    R = 1
    W = 2


class Plain(enum.Flag):
    A = 1
    B = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class NulEnum(enum.Enum):
    A = "a\x00b"


@dataclass(frozen=True)
class Card:
    number: str


@dataclass(frozen=True)
class GoldCard(Card):
    limit: int = 0


@dataclass(frozen=True)
class Iban:
    iban: str


class Dog(msgspec.Struct, tag=True, frozen=True):
    bones: int


class Cat(msgspec.Struct, tag=True, frozen=True):
    lives: int


class Tree(msgspec.Struct, frozen=True):
    kids: tuple[Tree, ...] = ()


@attrs.frozen
class Spot:
    x: int
    y: float


class Point(NamedTuple):
    x: int
    y: int


class Address(TypedDict, total=False):
    street: str


class Model(pydantic.BaseModel):
    a: int


class SubModel(Model):
    b: int = 0


@dataclass(frozen=True)
class Box(Generic[T]):
    item: T


class Pair(msgspec.Struct, Generic[T, U], frozen=True):
    first: T
    second: U


class Bare:
    """No kind of the codec's."""

    def __init__(self, a: int) -> None:
        self.a = a


OrderId = NewType("OrderId", int)
Short = Annotated[str, msgspec.Meta(max_length=3)]
_BERLIN = ZoneInfo("Europe/Berlin")
_UUID = UUID("6f1d7f5e-3b52-5c1d-9b0a-8f5f0a4c2e11")

TYPES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "Any": (Any, [1, "a", [1], {"a": None}, (1, 2), {1: 2}, {1}, dt.date(2026, 1, 1), _UUID, Colour.RED, Card("1")]),
    "object": (object, ["a", [1, None], (1,), Decimal("1.0"), Bare(1)]),
    "None": (None, [None, 0]),
    "bool": (bool, [True, False, 1, None]),
    "int": (int, [0, -1, 2**53 + 1, 2**63, 2**64, -(2**70), 2**200, True, 3.0, "7", Size.L]),
    "float": (float, [0.0, -0.0, 5e-324, 1e308, 3, 2**53 + 1, float("nan"), float("inf"), -float("inf"), "1"]),
    "str": (str, ["", "null", "\\u0000", "a\x00", "\ud800", "\U0001f469\u200d ä\u2028", Mood.BAD, _UUID, 1, None]),
    "bytes": (bytes, [b"", b"\x00\xff", b"a\x00b", b"text", bytearray(b"ab"), "text"]),
    "bytearray": (bytearray, [bytearray(b""), bytearray(b"\xff"), b"ab"]),
    "memoryview": (memoryview, [memoryview(b"ab")]),
    "Decimal": (Decimal, [Decimal(t) for t in ("0.10", "NaN", "sNaN", "-0.0", "1E+400", "Infinity")] + [0.5, 3, "1"]),
    "UUID": (UUID, [_UUID, UUID(int=0), str(_UUID)]),
    "datetime": (
        dt.datetime,
        [
            dt.datetime(2026, 10, 25, 2, 30),
            dt.datetime(2026, 10, 25, 2, 30, fold=1),
            dt.datetime(2026, 10, 25, 2, 30, tzinfo=_BERLIN),
            dt.datetime(2026, 10, 25, 2, 30, tzinfo=_BERLIN, fold=1),
            dt.datetime(2026, 3, 29, 2, 30, tzinfo=_BERLIN),
            dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5))),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
            dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=30))),
            dt.datetime(1800, 1, 1, tzinfo=_BERLIN),
            dt.date(2026, 1, 1),
            "2026-01-01T00:00:00",
        ],
    ),
    "date": (dt.date, [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.datetime(2026, 1, 1)]),
    "time": (dt.time, [dt.time(23, 59, 59, 999999), dt.time(1, tzinfo=dt.UTC), dt.time(1, tzinfo=_BERLIN), "01:00"]),
    "timedelta": (dt.timedelta, [dt.timedelta(0), dt.timedelta(-1, 0, 1), dt.timedelta.max, dt.timedelta.min, 1.5]),
    "Enum": (Colour, [Colour.RED, "red", Mood.GOOD]),
    "IntEnum": (Size, [Size.S, 1]),
    "StrEnum": (Mood, [Mood.GOOD, "good"]),
    "IntFlag": (Perm, [Perm.R, Perm.R | Perm.W, Perm(0), 3]),
    "Flag": (Plain, [Plain.A, Plain.A | Plain.B, Plain(0)]),
    "Enum of several types": (Mixed, [Mixed.ONE, Mixed.TWO]),
    "Enum with NUL": (NulEnum, [NulEnum.A]),
    "Literal": (Literal["a", 1, None], ["a", 1, None, "b", True]),
    "Optional": (Card | None, [Card("1"), None, GoldCard("1", 2)]),
    "int | str": (int | str, [1, "1", True, 1.0]),
    "float | int": (float | int, [1, 1.0, 2**60, float("nan")]),
    "Decimal | None": (Decimal | None, [Decimal("1.0"), None, 1.5]),
    "bool | int | str | None": (bool | int | str | None, [True, 1, "x", None]),
    "datetime | str": (dt.datetime | str, [dt.datetime(2026, 1, 1), "2026-01-01T00:00:00"]),
    "UUID | str": (UUID | str, [_UUID, str(_UUID)]),
    "bytes | str": (bytes | str, [b"a", "a"]),
    "list | tuple": (list[int] | tuple[int, ...], [[1], (1,)]),
    "set | list": (set[int] | list[int], [{1}, [1]]),
    "dataclasses": (Card | Iban, [Card("1"), Iban("1")]),
    "tagged Structs": (Dog | Cat, [Dog(1), Cat(9)]),
    "int | Decimal": (int | Decimal, [1, Decimal("1")]),
    "list": (list[int], [[], [1, 2], (1, 2), {1}, ["a"], [True], [1.0]]),
    "bare list": (list, [[1, "a"], [(1,)], [Colour.RED]]),
    "Sequence": (Sequence[int], [[1], (1,)]),
    "tuple": (tuple[int, str], [(1, "a"), (1,), [1, "a"], ("a", 1)]),
    "tuple of any length": (tuple[int, ...], [(), (1, 2), Point(1, 2), [1]]),
    "set": (set[int], [set(), {1, 2}, frozenset({1}), [1]]),
    "frozenset": (frozenset[Colour], [frozenset(), frozenset(Colour), {Colour.RED}]),
    "Set": (AbstractSet[int], [{1}, frozenset({1})]),
    "set of floats": (set[float], [{1.5, 2.0}, {1}, {float("nan")}]),
    "dict": (dict[str, int], [{}, {"a": 1}, {"a\x00": 1}, {"\ud800": 1}, {1: 1}, {"a": "b"}]),
    "dict of dicts": (dict[str, dict[str, Any]], [{"a": {"b": [1]}}, {"a": {"b": (1,)}}]),
    "bare dict": (dict, [{"a": 1}, {1: 1}]),
    "Mapping": (Mapping[str, int], [{"a": 1}]),
    "int keys": (dict[int, str], [{1: "a"}, {"1": "a"}, {True: "a"}]),
    "float keys": (dict[float, int], [{1.5: 1}, {1: 1}, {float("nan"): 1}]),
    "UUID keys": (dict[UUID, int], [{_UUID: 1}, {str(_UUID): 1}]),
    "date keys": (dict[dt.date, int], [{dt.date(2026, 1, 1): 1}, {dt.datetime(2026, 1, 1): 1}]),
    "datetime keys": (dict[dt.datetime, int], [{dt.datetime(2026, 1, 1): 1}]),
    "enum keys": (dict[Colour, int], [{Colour.RED: 1}, {"red": 1}]),
    "int enum keys": (dict[Size, int], [{Size.S: 1}, {1: 1}]),
    "bytes keys": (dict[bytes, int], [{b"a": 1}]),
    "Decimal keys": (dict[Decimal, int], [{Decimal("1.0"): 1}, {Decimal("NaN"): 1}, {1: 1}]),
    "tuple keys": (dict[tuple[int, int], int], [{(1, 2): 3}]),
    "bool keys": (dict[bool, int], [{True: 1}]),
    "int or str keys": (dict[int | str, int], [{1: 1}, {"1": 1}, {"a": 1}]),
    "dataclass": (Card, [Card("1"), GoldCard("1", 2), {"number": "1"}, Card(1), None]),  # type: ignore[arg-type]
    "Struct": (Dog, [Dog(1), Cat(1), Dog("1")]),  # type: ignore[arg-type]
    "recursive": (Tree, [Tree(), Tree((Tree((Tree(),)),)), Tree([Tree()])]),  # type: ignore[arg-type]
    "attrs class": (Spot, [Spot(1, 2.5), Spot(1, 2), Spot("1", 2)]),  # type: ignore[arg-type]
    "named tuple": (Point, [Point(1, 2), (1, 2), Point("1", 2)]),  # type: ignore[arg-type]
    "TypedDict": (Address, [{}, {"street": "a"}, {"street": 1}, {"other": 1}]),
    "pydantic model": (Model, [Model(a=1), SubModel(a=1, b=2), {"a": 1}]),
    "SecretStr": (pydantic.SecretStr, [pydantic.SecretStr("s3cret"), pydantic.SecretStr("")]),
    "SecretBytes": (dict[str, list[pydantic.SecretBytes]], [{"a": [pydantic.SecretBytes(b"s3cret")]}]),
    "NewType": (OrderId, [OrderId(1), "1"]),
    "Annotated": (Short, ["abc", "abcd"]),
    "TypeVar": (typing.TypeVar("T"), [1, "a", (1,)]),
    "Final": (Final[int], [1, "1"]),
    "complex": (complex, [1j]),
    "Path": (Path, [Path("/tmp")]),
    "class": (Bare, [Bare(1)]),
    "type": (type, [int]),
    "Callable": (Callable[[], int], [lambda: 1]),
    "Raw": (msgspec.Raw, [msgspec.Raw(b'{"a": 1}'), msgspec.Raw(b"{"), msgspec.Raw(b'"\\u0000"')]),
    "Ext": (msgspec.msgpack.Ext, [msgspec.msgpack.Ext(1, b"")]),
    "generic dataclass": (Box[UUID], [Box(_UUID), Box(1), Box(str(_UUID))]),
    "generic Struct": (Pair[Card, tuple[int, ...]], [Pair(Card("1"), (1,)), Pair(Card("1"), [1])]),
    "open generic": (Box, [Box(1), Box(_UUID)]),
    "UNSET": (int | msgspec.UnsetType, [1, msgspec.UNSET]),
}
