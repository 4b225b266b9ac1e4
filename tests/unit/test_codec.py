"""The codec: bytes once, and a path into the data for what cannot be kept."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.codec import UndecodableError, decode, encode
from relevo.errors import RefusedError


@dataclass(frozen=True)
class Data:
    value: Any = None
    extra: dict[str, Any] = field(default_factory=dict)


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Rich:
    id: UUID
    price: Decimal
    at: datetime
    colour: Colour
    tags: frozenset[str]


class Struct(msgspec.Struct, frozen=True):
    a: int


@attrs.define(frozen=True)
class Attrs:
    a: int


class Model(pydantic.BaseModel):
    a: int
    note: str = ""
    number: float = 0.0


@pytest.mark.parametrize(
    "data",
    [
        Rich(UUID(int=1), Decimal("1.10"), datetime(2026, 3, 29, 1, 30, tzinfo=UTC), Colour.RED, frozenset({"a"})),
        Struct(1),
        Attrs(1),
        Model(a=1, note="ñ"),
    ],
)
def test_round_trip(data: Any) -> None:
    """dataclass, Struct, attrs, pydantic: what comes back equals what went in."""
    assert decode(encode(data), type(data)) == data


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), inner)
    ),
)


@given(json_values)
def test_any_json_value_survives(value: Any) -> None:
    """Whatever JSON can say comes back equal, "null" in texts and keys included."""
    assert decode(encode(Data(value)), Data) == Data(value)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (Data("x\0"), "$.value:"),
        (Data(["a", {"b": "\0"}]), "$.value[1]['b']:"),
        (Data({"k\0": 1}), "$.value (key"),
        (Data("\ud800"), "$.value:"),
        (Data(float("nan")), "$.value:"),
        (Data([1.0, float("-inf")]), "$.value[1]:"),
        (Data(extra={"deep": {"x": object()}}), "$.extra['deep']['x']:"),
        (Model(a=1, note="\0"), "$.note:"),
        (Model(a=1, number=float("nan")), "$.number:"),
        (Model(a=1, note="\ud800"), "$.note:"),
    ],
)
def test_refused_with_a_path(data: Any, path: str) -> None:
    """FAILURES row 38: NUL, lone surrogates, NaN and unknown types are refused, and the message says where."""
    with pytest.raises(RefusedError) as caught:
        encode(data)
    assert str(caught.value).startswith(path)


def test_null_and_escaped_nul_in_text_are_kept() -> None:
    """The word null, None and a literal backslash-u0000 are text and values like others."""
    for value in ("null", None, "\\u0000", ["null", None]):
        assert decode(encode(Data(value)), Data) == Data(value)


def test_endless_data_is_refused() -> None:
    """A list inside itself ends in a refusal, not in a crash."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RefusedError):
        encode(Data(endless))


@pytest.mark.parametrize("payload", [None, b"", b"null", b"{", b"\xff", b'{"a": "x"}', b"[]"])
@pytest.mark.parametrize("cls", [Struct, Model])
def test_what_cannot_be_decoded_says_so(payload: bytes | None, cls: type) -> None:
    """FAILURES row 37: one error for all that is not the expected data; an additional field is fine."""
    with pytest.raises(UndecodableError):
        decode(payload, cls)
    assert decode(b'{"a": 1, "later": true}', cls).a == 1
