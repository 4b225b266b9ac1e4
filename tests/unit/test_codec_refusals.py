"""What the append refuses because it would come back as something else (B3, C6), with the path and without values."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from typing import Any, NewType
from uuid import UUID

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, SecretBytes, SecretStr, computed_field

from relevo import Consumer, Outbox, event
from relevo.codec import UndecodableError, codec_of, decode, encode
from relevo.effects.recording import _data as effect_data
from relevo.errors import ConfigError, RefusedError
from relevo.outbox.arguments import validates
from relevo.outbox.building import build


@event("refusals.order.placed", key="order_id")
@dataclass
class Placed:
    order_id: Any
    total: int = 0
    note: str = ""


class Struct(msgspec.Struct):
    total: int
    note: str = ""


@attrs.define
class Attrs:
    total: int
    note: str = ""


class Model(BaseModel):
    total: int
    note: str = ""


@pytest.mark.parametrize("cls", [Struct, Attrs, Placed])
def test_values_of_the_wrong_type(cls: Any) -> None:
    """`OrderPlaced("seven", "x")` on dataclass, msgspec and attrs is refused where it is written."""
    options = {"order_id": 1} if cls is Placed else {}
    for wrong, path in (
        ({"total": "seven"}, "$.total"),
        ({"total": 1, "note": 5}, "$.note"),
        ({"total": None}, "$.total"),
    ):
        with pytest.raises(RefusedError) as caught:
            encode(cls(**options, **wrong))
        assert caught.value.path == path


def test_a_model_that_was_not_validated() -> None:
    """`model_construct`, and assignment to a field, without pydantic's warning about it, which shows the value."""
    model = Model(total=1)
    model.total = "s3cret"  # type: ignore[assignment]
    for wrong in (Model.model_construct(total="s3cret"), model, Model.model_construct(note="s3cret")):
        with pytest.raises(RefusedError) as caught:
            encode(wrong)
        assert caught.value.path == "$.total" and "s3cret" not in str(caught.value)
    with pytest.raises(RefusedError) as lenient:
        encode(Model.model_construct(total="7"))  # read as 7
    assert lenient.value.path == "$.total"


def test_without_validation_the_bytes_are_written_as_before() -> None:
    """`validate=False` writes what it is given, also of a class that cannot be read."""
    assert encode(Struct("seven"), validate=False) == b'{"total":"seven","note":""}'  # type: ignore[arg-type]
    with pytest.raises(RefusedError):
        encode(Struct(1, "\0"), validate=False)
    outbox = Outbox(validate=False)
    assert outbox._validates() is False


def test_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """`[outbox] validate`, from file or environment; an Outbox goes before; what cannot be read leaves it on."""
    monkeypatch.chdir(tmp_path)
    assert validates() and Outbox()._validates()
    (tmp_path / "relevo.toml").write_text("[outbox]\nvalidate = false\n")
    assert not validates() and not Outbox()._validates() and Outbox(validate=True)._validates()
    monkeypatch.setenv("RELEVO_OUTBOX_VALIDATE", "true")
    assert validates()
    (tmp_path / "relevo.toml").write_text("[outbox]\nno_such = false\n")
    assert validates()


def test_a_key_that_the_database_makes() -> None:
    """`None` before the flush: the hint says so."""

    @event("refusals.flush.first", key="order_id")
    @dataclass
    class First:
        order_id: int

    with pytest.raises(RefusedError, match=r"\$\.order_id: .*flush the session"):
        build(First(None), 1000)  # type: ignore[arg-type]


# --- pydantic --------------------------------------------------------------------------------------------------------


class Alias(BaseModel):
    order_id: int = Field(alias="orderId")


class Both(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    order_id: int = Field(alias="orderId")


class Written(BaseModel):
    order_id: int = Field(serialization_alias="orderId")


class Read(BaseModel):
    order_id: int = Field(validation_alias="orderId")


class Choices(BaseModel):
    order_id: int = Field(validation_alias=AliasChoices("orderId", "id"))


class Deep(BaseModel):
    order_id: int = Field(validation_alias=AliasPath("ids", 0))


class Holder(BaseModel):
    written: Written
    read: list[Read]
    alias: dict[str, Alias]


def test_models_by_alias() -> None:
    """As its alias where that is read; by name, which is then read too, where the two aliases differ."""
    assert encode(Alias(orderId=1)) == encode(Both(orderId=1)) == b'{"orderId":1}'
    assert encode(Written(order_id=1)) == b'{"order_id":1}'
    holder = Holder(written=Written(order_id=1), read=[Read(orderId=2)], alias={"a": Alias(orderId=3)})
    for model in (Alias(orderId=1), Both(order_id=1), Read(orderId=1), Choices(id=1), Deep(ids=[1]), holder):  # type: ignore[call-arg]
        assert decode(encode(model), type(model)) == model
    assert decode(b'{"order_id": 1}', Both) == decode(b'{"orderId": 1}', Both)  # rows of before
    assert decode(b'{"orderId": 1}', Choices) == Choices(id=1)  # type: ignore[call-arg]


class Hidden(BaseModel):
    tokens: list[dict[str, SecretStr | None]]


class HiddenBytes(BaseModel):
    token: SecretBytes = SecretBytes(b"x")


class Shown(BaseModel):
    token: SecretStr

    @pydantic.field_serializer("token", when_used="json")
    def _show(self, token: SecretStr) -> str:
        return token.get_secret_value()


class Excluded(BaseModel):
    a: int = 0
    b: int = Field(exclude=True)


class ExcludedWithDefault(BaseModel):
    b: int = Field(default=1, exclude=True)


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.a * 2


class Bytes(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64")
    raw: list[bytes]


class Private(BaseModel):
    a: int
    _seen: int = 0


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Lossy(BaseModel):
    price: Decimal

    @pydantic.field_serializer("price")
    def _round(self, price: Decimal) -> str:
        return str(round(price, 2))


class Raises(BaseModel):
    price: int

    @pydantic.field_serializer("price")
    def _fail(self, price: int) -> str:
        raise ValueError(f"s3cret {price}")


@pytest.mark.parametrize(
    ("cls", "path"),
    [
        (Hidden, "Hidden.tokens[][]"),
        (HiddenBytes, "HiddenBytes.token"),
        (Excluded, "Excluded.b"),
        (Bytes, "Bytes.raw[]"),
        (pydantic.create_model("Named", token=NewType("Token", SecretStr)), "Named.token"),
        (pydantic.create_model("Later", at=list[pydantic.FutureDatetime]), "Later.at[]"),
        (pydantic.create_model("Here", file=pydantic.FilePath), "Here.file"),
        (pydantic.create_model("Here", files=dict[str, pydantic.NewPath]), "Here.files[]"),
        (dataclass(type("Both", (dict,), {"__annotations__": {"a": int}})), "Both"),
    ],
)
def test_models_that_cannot_come_back(cls: Any, path: str) -> None:
    """Refused at the declaration, with the path of the field."""
    with pytest.raises(RefusedError) as caught:
        event("refusals.model.wrong")(cls)
    assert caught.value.path == path


def test_a_nested_model_is_looked_at_too() -> None:
    @dataclass
    class Inner:
        secret: SecretStr

    class Outer(BaseModel):
        inner: tuple[Inner, ...]

    with pytest.raises(RefusedError) as caught:
        event("refusals.model.wrong")(Outer)
    assert caught.value.path == "Outer.inner[].secret"


def test_models_that_are_compared() -> None:
    """Accepted at the declaration; a value that would be lost or change is refused at the append."""
    private = Private(a=1)
    private._seen = 2
    for lost, path in (
        (ExcludedWithDefault(b=2), "$.b"),
        (private, "$._seen"),
        (Open(a=1, extra=(1, 2)), "$.extra"),  # type: ignore[call-arg]
        (Lossy(price=Decimal("1.005")), "$.price"),
        (Raises(price=7), "$.price"),
    ):
        with pytest.raises(RefusedError) as caught:
            encode(lost)
        assert caught.value.path == path and "s3cret" not in str(caught.value)
    for kept in (
        *(ExcludedWithDefault(), Private(a=1), Open(a=1, extra=[1]), Lossy(price=Decimal("1.25"))),  # type: ignore[call-arg]
        *(Computed(a=1), Shown(token=SecretStr("s3cret"))),
    ):
        assert decode(encode(kept), type(kept)) == kept


class Strings(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    price: float
    other: int | None = None


class Constants(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    price: float
    note: str = "NaN Infinity"


def test_numbers_that_are_none() -> None:
    """NaN as text comes back; as a constant it is not JSON; the word in a text is a text."""
    back = decode(encode(Strings(price=float("nan"))), Strings)
    assert back.price != back.price
    assert decode(encode(Constants(price=1)), Constants) == Constants(price=1)
    for wrong in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(RefusedError) as caught:
            encode(Constants(price=wrong))
        assert caught.value.path == "$.price"


# --- The rest of the kinds -------------------------------------------------------------------------------------------


@dataclass
class WithInit:
    a: int
    b: InitVar[int] = 5
    c: int = field(init=False, default=7)
    d: list[int] = field(default_factory=list)

    def __post_init__(self, b: int) -> None:
        self.c = self.a + b


@dataclass(frozen=True, slots=True)
class FrozenInit:
    a: int
    b: InitVar[int]


@dataclass
class Nested:
    inner: WithInit


def test_init_vars() -> None:
    """The fields come back as they were; what a nested one would need is not known, so that is refused."""
    assert decode(encode(WithInit(1, b=9)), WithInit) == WithInit(1, b=9)
    assert decode(encode(FrozenInit(1, 2)), FrozenInit) == FrozenInit(1, 2)
    assert decode(b'{"a": 1, "later": 2}', WithInit).d == []
    with pytest.raises(UndecodableError):
        decode(b'{"c": 1}', WithInit)
    with pytest.raises(RefusedError) as caught:
        codec_of(Nested)
    assert caught.value.path == "Nested.inner.b"


def test_fields_of_another_library() -> None:
    """Where a message lacks the field, the handler would get the library's own object."""

    @pydantic.dataclasses.dataclass
    class Mixed:
        a: int = 0
        b: list[int] = pydantic.Field(default_factory=list)

    class Wrong(msgspec.Struct):
        b: Any = pydantic.Field(default=1)

    class AlsoWrong(msgspec.Struct):
        b: Any = field(default=1)

    for cls in (Mixed, Wrong, AlsoWrong):
        with pytest.raises(RefusedError) as caught:
            codec_of(cls)
        assert caught.value.path.endswith(".b") and "the default is a" in str(caught.value)


@dataclass
class Doubling:
    a: int

    def __post_init__(self) -> None:
        self.a *= 2


@dataclass
class Raising:
    a: int

    def __post_init__(self) -> None:
        if self.a == 2:
            raise KeyError("s3cret")
        self.a = 2


@dataclass(eq=False)
class NoEq:
    inner: Any = None


@dataclass
class Always:
    a: Any

    def __eq__(self, other: object) -> bool:
        return True


@dataclass
class Never:
    a: int

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("s3cret")


@dataclass
class Lists:
    value: list[Any]


class Tone(enum.Enum):
    LOW = 1


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (Doubling(1), "$.a"),
        (Raising(1), "$"),
        (NoEq((1,)), "$.inner"),
        (Always((1,)), "$.a"),
        (Lists([[1], [(1,)]]), "$.value[1][0]"),
        (Lists([Tone.LOW]), "$.value[0]"),
        (Lists([{"a": dt.date(2026, 1, 1)}]), "$.value[0]['a']"),
        (Lists([WithInit(1)]), "$.value[0]"),
        (Lists((1,)), "$.value"),  # type: ignore[arg-type]
    ],
)
def test_what_would_change(data: Any, path: str) -> None:
    """By a `__post_init__`, in `Any`, behind an `__eq__` that says yes to everything."""
    with pytest.raises(RefusedError) as caught:
        encode(data)
    assert caught.value.path == path and "s3cret" not in str(caught.value)


def test_what_no_eq_can_spoil() -> None:
    """Objects are compared by their fields, whatever their `__eq__` is."""
    for data in (NoEq(), NoEq([1]), Always("x"), Never(1)):
        assert encode(data)


@dataclass
class Parent:
    a: int


@dataclass(eq=False)
class Child(Parent):
    b: UUID


@dataclass
class Holding:
    child: Child


def test_an_inherited_eq_is_not_trusted() -> None:
    """It compares the fields of the base: text that reads as a UUID would pass."""
    assert encode(Holding(Child(1, UUID(int=1))))
    with pytest.raises(RefusedError) as caught:
        encode(Holding(Child(1, str(UUID(int=1)))))  # type: ignore[arg-type]
    assert caught.value.path == "$.child.b"
    assert codec_of(Struct)._exact is not None  # and the quick way is taken where it can be


class Span:
    """No ``__eq__`` of its own."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Slotted:
    __slots__ = ("start",)

    def __init__(self, start: int) -> None:
        self.start = start


class Ranged(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    span: Span
    slotted: Slotted = Slotted(1)

    @pydantic.field_serializer("span", "slotted")
    def _write(self, value: Any) -> list[int]:
        return [value.start, min(getattr(value, "end", 0), 100)]

    @pydantic.field_validator("span", "slotted", mode="before")
    @classmethod
    def _read(cls, value: Any, info: Any) -> Any:
        if not isinstance(value, list):
            return value
        return Span(*value) if info.field_name == "span" else Slotted(value[0])


def test_objects_without_an_eq_are_compared_by_what_they_hold() -> None:
    assert encode(Ranged(span=Span(1, 2), slotted=Slotted(7))) == b'{"span":[1,2],"slotted":[7,0]}'
    with pytest.raises(RefusedError) as caught:
        encode(Ranged(span=Span(1, 200)))
    assert caught.value.path == "$.span"


def test_the_innermost_field_is_named() -> None:
    @dataclass
    class Card:
        number: str

    @dataclass
    class Line:
        price: dt.datetime | str

    @dataclass
    class Order:
        lines: dict[str, list[Line | None]]

    Order.__annotations__["lines"] = dict[str, list[Line | None]]
    Line.__annotations__["price"] = dt.datetime | str
    with pytest.raises(RefusedError) as caught:
        event("refusals.order.lines")(Order)
    assert caught.value.path == "Order.lines[][].price"
    assert "cannot tell" in str(caught.value)


def test_a_forward_reference_is_asked_again() -> None:
    """A name that does not exist yet is no mistake at the declaration; at the start of a consumer and at the append it
    is."""

    @event("refusals.forward.made")
    @dataclass
    class Forward:
        later: ThereLater  # type: ignore[name-defined]  # noqa: F821

    consumer = Consumer("refusals", ["refusals"])
    consumer.on(Forward)(lambda event: None)
    with pytest.raises(RefusedError, match="'ThereLater' of an annotation does not exist"):
        build(Forward(1), 1000)
    with pytest.raises(ConfigError, match="ThereLater"):
        consumer.routes()
    globals()["ThereLater"] = int
    try:
        assert build(Forward(1), 1000).payload == b'{"later":1}'
        assert consumer.routes().find("refusals.forward.made") is not None
    finally:
        del globals()["ThereLater"]


def test_another_version_of_the_class_reads_as_before() -> None:
    """Fewer fields, more fields with defaults: the reader is not stricter than it was."""

    @dataclass
    class Fewer:
        a: int

    @dataclass
    class More:
        a: int
        b: int
        c: str = "x"

    assert decode(encode(More(1, 2)), Fewer) == Fewer(1)
    assert decode(b'{"a": 1, "b": 2}', More) == More(1, 2)
    with pytest.raises(UndecodableError, match="b"):
        decode(encode(Fewer(1)), More)


def test_why_a_payload_cannot_be_read_is_one_line_without_its_values() -> None:
    class Many(BaseModel):
        a: int
        b: int
        c: list[int]
        d: int

    payload = b'{"a": "s3cret", "b": "s3cret", "c": [1, "s3cret"], "d": "s3cret"}'
    with pytest.raises(UndecodableError) as caught:
        decode(payload, Many)
    text = str(caught.value)
    assert "s3cret" not in text and "\n" not in text
    assert text.startswith("$.a: ") and "$.c[1]: " in text and text.endswith("(and 1 more)")

    class Toned(msgspec.Struct):
        tone: Tone

    with pytest.raises(UndecodableError, match=r"Invalid enum value - at `\$\.tone`"):
        decode(b'{"tone": 77777}', Toned)


def test_data_of_an_effect_is_not_changed_silently() -> None:
    """NaN would be written as null; None and the word are kept."""
    with pytest.raises(RefusedError) as caught:
        effect_data({"a": [1.0, float("nan")]})
    assert caught.value.path == "data['a'][1]"
    assert effect_data({"a": None, "b": "null"}) == '{"a":null,"b":"null"}'
