"""What goes in comes out: refused at the declaration, refused at the append, or equal on the other side.

Every kind of class × every type the codec names, and classes that Hypothesis makes. The whole way: the outbox, a row,
CloudEvents headers, the handler's data. What is equal is judged here, not by the codec.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import itertools
import sqlite3
import typing
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from relevo import Consumer, Message, Outbox, event, wire
from relevo.codec.kinds import Kind as KindName
from relevo.codec.kinds import field_names, kind_of
from relevo.consumer.handlers import Handler
from relevo.errors import RefusedError, TooLargeError
from relevo.outbox.building import build
from tests.support import declared
from tests.support.declared import KINDS, TYPES, Kind
from tests.support.relays import Store

NAME = "edges.round.tripped"
REFUSED_EARLY = "refused at the declaration"
REFUSED_LATE = "refused at the append"
EQUAL = "equal"


def same(sent: Any, back: Any) -> bool:
    """Whether the handler gets what the writer gave. An int may come as the number it is declared as, a subclass of
    str or int as its base, a time zone as its offset."""
    if isinstance(sent, dt.datetime) and isinstance(back, dt.datetime):
        return sent.isoformat() == back.isoformat() and (sent.tzinfo is not None or sent.fold == back.fold)
    if isinstance(sent, dt.time) and isinstance(back, dt.time):
        return sent.isoformat() == back.isoformat() and (sent.tzinfo is None) is (back.tzinfo is None)
    if type(sent) is not type(back):
        if isinstance(sent, (str, int)) and not isinstance(sent, bool) and not isinstance(back, enum.Enum):
            return isinstance(back, (str, int, float, Decimal)) and not isinstance(back, bool) and bool(sent == back)
        return False
    names = field_names(type(sent))
    if names is not None:
        return all(same(getattr(sent, name, ...), getattr(back, name, ...)) for name in names)
    if isinstance(sent, dict):
        mine, other = sorted(sent.items(), key=_sorted_by), sorted(back.items(), key=_sorted_by)
        return len(mine) == len(other) and all(map(same, itertools.chain(*mine), itertools.chain(*other)))
    if isinstance(sent, (list, tuple)):
        return len(sent) == len(back) and all(map(same, sent, back))
    if isinstance(sent, (set, frozenset)):
        return len(sent) == len(back) and all(map(same, sorted(sent, key=repr), sorted(back, key=repr)))
    if isinstance(sent, (msgspec.Raw, memoryview)):
        return bytes(sent) == bytes(back)
    if hasattr(sent, "get_secret_value"):
        return bool(sent.get_secret_value() == back.get_secret_value())
    return repr(sent) == repr(back)


def _sorted_by(item: tuple[Any, Any]) -> str:
    key = item[0]
    return str(key.value if isinstance(key, enum.Enum) else key)


def handler_of(cls: type) -> Handler:
    consumer = Consumer("edges", ["edges.round"])
    consumer.on(cls)(lambda event: None)
    return consumer.handlers[0]


def arrived(message: Message) -> Message:
    """``message`` as a consumer gets it."""
    headers = wire.encode(message, b"urn:relevo:edges")
    return wire.decode(
        message.topic, message.key, message.payload, headers, arrived_at=message.created_at, shard="0", position=0
    )


def outcome(kind: Kind, fields: dict[str, Any], values: dict[str, Any]) -> str:
    """Which of the three it is; fails if it is none."""
    cls = kind.make(fields)
    try:
        event(NAME)(cls)
    except RefusedError as error:
        assert error.path.startswith("Made"), error
        return REFUSED_EARLY
    handler = handler_of(cls)
    sent = kind.instance(cls, values)
    try:
        message = build(sent, 1_000_000)
    except TooLargeError:
        return REFUSED_LATE
    except RefusedError as error:
        assert error.path.startswith("$"), error
        assert "s3cret" not in str(error)
        return REFUSED_LATE
    back = handler.data_of(arrived(message))
    assert type(back) is cls
    assert same(sent, back), (kind, fields, sent, back, message.payload)
    return EQUAL


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("type_name", TYPES)
def test_every_kind_with_every_type(kind: str, type_name: str) -> None:
    """A field alone, beside one that is exact, and in a list."""
    annotation, values = TYPES[type_name]
    if not can_have(KINDS[kind], annotation):
        return
    for value in values:
        outcome(KINDS[kind], {"v": annotation}, {"v": value})
        outcome(KINDS[kind], {"id": int, "v": annotation}, {"id": 1, "v": value})
        if annotation not in (None, typing.Final[int]):
            outcome(KINDS[kind], {"v": list[annotation]}, {"v": [value, value]})


def can_have(kind: Kind, annotation: Any) -> bool:
    """Whether the library lets such a class be made at all."""
    try:
        kind.make({"v": annotation})
    except Exception:
        return False
    return True


ACCEPTED = [
    *("bool", "int", "float", "str", "bytes", "Decimal", "UUID", "datetime", "date", "time", "timedelta", "Enum"),
    *("IntEnum", "StrEnum", "Literal", "Optional", "int | str", "tagged Structs", "list", "tuple", "set", "frozenset"),
    *("dict", "int keys", "UUID keys", "enum keys", "dataclass", "Struct", "recursive", "named tuple", "TypedDict"),
    *("NewType", "Any", "Sequence", "Mapping", "bool | int | str | None"),
]
REFUSED = [
    *("datetime | str", "UUID | str", "bytes | str", "list | tuple", "set | list", "dataclasses", "tuple keys"),
    *("bool keys", "pydantic model", "SecretStr", "SecretBytes", "complex", "Path", "class", "type", "Callable", "Ext"),
    "Enum of several types",
]
BY_MSGSPEC = [name for name, kind in KINDS.items() if kind.of != "pydantic"]


@pytest.mark.parametrize("type_name", ACCEPTED)
def test_what_is_promised_is_accepted(type_name: str) -> None:
    """The suite is not satisfied with refusals: the first value of these types passes with every kind of msgspec's."""
    annotation, values = TYPES[type_name]
    value = values[0]
    for kind in BY_MSGSPEC:
        assert outcome(KINDS[kind], {"v": annotation}, {"v": value}) == EQUAL, kind


@pytest.mark.parametrize("type_name", REFUSED)
def test_what_cannot_be_read_is_refused_at_the_declaration(type_name: str) -> None:
    """Before there is a value, and with the path of the field."""
    annotation, _ = TYPES[type_name]
    for kind in BY_MSGSPEC:
        made = KINDS[kind].make({"id": int, "v": annotation})
        with pytest.raises(RefusedError) as caught:
            event(NAME)(made)
        assert caught.value.path.startswith("Made.v"), (kind, caught.value)


def test_the_matrix_is_whole() -> None:
    """A kind of class or a type of the codec that is new has to be put into the tables above."""
    assert {kind.of for kind in KINDS.values()} == set(typing.get_args(KindName))
    for name, kind in KINDS.items():
        assert kind_of(kind.make({"v": int})) == kind.of, name
    named = {node for annotation, _ in TYPES.values() for node in nodes(annotation)}
    known = {
        name
        for name, each in vars(msgspec.inspect).items()
        if isinstance(each, type) and issubclass(each, msgspec.inspect.Type) and not each.__subclasses__()
    }
    only_for_documents = {"Metadata", "FrozenDictType"}  # a description; a type of Python 3.15
    assert known - only_for_documents - named == set()


def nodes(annotation: Any) -> Iterator[str]:
    try:
        todo: list[Any] = [msgspec.inspect.type_info(annotation)]
    except Exception:
        return
    seen: list[Any] = []
    while todo:
        node = todo.pop()
        if isinstance(node, msgspec.inspect.Type) and not any(node is each for each in seen):
            seen.append(node)
            yield type(node).__name__
            for name in node.__struct_fields__:
                value = getattr(node, name)
                todo.extend(value if isinstance(value, tuple) else [value])
        elif isinstance(node, msgspec.inspect.Field):
            todo.append(node.type)


# --- Through the databases -------------------------------------------------------------------------------------------


def test_through_the_outbox_of_a_database(store: Store) -> None:
    """Everything that is accepted, added to one outbox: the row holds the bytes, and they are read as what was given.
    PostgreSQL reads every one of them as JSON, as its views do."""
    sent: dict[str, tuple[Any, Handler]] = {}
    outbox = Outbox()
    with connect(store) as connection:
        for kind, (annotation, values) in itertools.product(KINDS.values(), TYPES.values()):
            if not can_have(kind, annotation):
                continue
            cls = kind.make({"v": annotation})
            try:
                event(NAME)(cls)
            except RefusedError:
                continue
            for value in values:
                data = kind.instance(cls, {"v": value})
                try:
                    event_id = outbox.add(connection, data)
                except RefusedError:
                    continue
                sent[str(event_id)] = (data, handler_of(cls))
        connection.commit()
        rows = connection.execute("select event_id, payload from relevo_outbox").fetchall()
        if isinstance(connection, psycopg.Connection):
            connection.execute("select convert_from(payload, 'UTF8')::jsonb from relevo_outbox")
    assert len(rows) == len(sent) > 1000
    for event_id, payload in rows:
        data, handler = sent[str(event_id)]
        message = Message(
            event_id=UUID(str(event_id)), type=NAME, topic="edges", payload=bytes(payload), created_at=NOW
        )
        assert same(data, handler.data_of(arrived(message))), data


NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def connect(store: Store) -> Any:
    if store.url.startswith("postgresql"):
        return psycopg.connect(store.url)
    return sqlite3.connect(store.url.removeprefix("sqlite:///"))


# --- Classes that Hypothesis makes -----------------------------------------------------------------------------------

_texts = st.text(st.characters(exclude_categories=()), max_size=6)
_moments = st.datetimes(timezones=st.none() | st.timezones() | st.just(dt.UTC), allow_imaginary=True)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers() | st.integers(-(2**70), 2**70),
    float: st.floats(),
    str: _texts,
    bytes: st.binary(max_size=6),
    Decimal: st.decimals() | st.just(Decimal("sNaN")),
    dt.datetime: _moments,
    dt.date: st.dates(),
    dt.time: st.times(timezones=st.none() | st.timezones()),
    dt.timedelta: st.timedeltas(),
    type(None): st.none(),
    declared.Colour: st.sampled_from(declared.Colour),
    declared.Size: st.sampled_from(declared.Size),
    declared.Mood: st.sampled_from(declared.Mood),
    declared.Perm: st.integers(0, 3).map(declared.Perm),
    declared.Card: _texts.map(declared.Card),
    declared.Iban: _texts.map(declared.Iban),
    declared.Dog: st.integers().map(declared.Dog),
    declared.Cat: st.integers().map(declared.Cat),
    declared.Point: st.builds(declared.Point, st.integers(), st.integers()),
    declared.Spot: st.builds(declared.Spot, st.integers(), st.floats()),
    declared.Box[dt.date]: st.dates().map(declared.Box),
    declared.Model: st.integers().map(lambda a: declared.Model(a=a)),
    typing.Literal["a", "b"]: st.sampled_from(["a", "b"]),
}
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=5,
)
Typed = tuple[Any, st.SearchStrategy[Any]]


def _with(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(lambda t: (list[t[0]], st.lists(t[1], max_size=3))),
        inner.map(lambda t: (tuple[t[0], ...], st.lists(t[1], max_size=3).map(tuple))),
        st.tuples(inner, inner).map(lambda p: (tuple[p[0][0], p[1][0]], st.tuples(p[0][1], p[1][1]))),
        inner.map(lambda t: (t[0] | None if t[0] is not None else None, t[1] | st.none())),
        st.tuples(inner, inner).map(lambda p: (typing.Union[p[0][0], p[1][0]], p[0][1] | p[1][1])),  # noqa: UP007
        _hashable().map(lambda t: (set[t[0]], st.sets(t[1], max_size=3))),
        _hashable().map(lambda t: (frozenset[t[0]], st.frozensets(t[1], max_size=3))),
        _nested(inner),
        st.tuples(_hashable(), inner).map(
            lambda p: (dict[p[0][0], p[1][0]], st.dictionaries(p[0][1], p[1][1], max_size=3))
        ),
    )


@st.composite
def _nested(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    """A class of any kind as a field's type; now and then the value is of a subclass."""
    kind = KINDS[draw(st.sampled_from(list(KINDS)))]
    fields = {name: draw(inner) for name in draw(st.sampled_from([["x"], ["x", "y"]]))}
    annotations = {name: annotation for name, (annotation, _) in fields.items()}
    if not can_have(kind, annotations["x"]) or not all(can_have(kind, each) for each in annotations.values()):
        return int, st.integers()
    cls = kind.make(annotations)
    values = st.fixed_dictionaries({name: strategy for name, (_, strategy) in fields.items()})
    classes = [cls]
    with contextlib.suppress(TypeError):  # of what cannot have one
        classes.append(type(cls)("Sub", (cls,), {"__module__": __name__}))
    return cls, st.tuples(st.sampled_from(classes), values).map(lambda pair: kind.instance(*pair))


def _hashable() -> st.SearchStrategy[Typed]:
    kept = [each for each in SCALARS.items() if each[0] not in (declared.Model, Decimal)]
    return st.sampled_from([*kept, (Decimal, st.decimals(allow_nan=False))])


typed = st.recursive(
    st.sampled_from([*SCALARS.items()]) | st.just((Any, _json | st.one_of(*SCALARS.values()))), _with, max_leaves=4
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A kind, fields, and a value for each: nine times of ten of its type, else of any."""
    kind = draw(st.sampled_from(list(KINDS)))
    fields: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name in draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c", "d"]])):
        annotation, strategy = draw(typed)
        fields[name] = annotation
        wrong = draw(st.integers(0, 9)) == 0
        values[name] = draw(draw(typed)[1] if wrong else strategy)
    return kind, fields, values


def run(examples: int, *, derandomize: bool) -> Counter[str]:
    found: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=derandomize,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(cases())
    def check(case: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
        kind, fields, values = case
        if can_have(KINDS[kind], fields["a"]) and all(can_have(KINDS[kind], each) for each in fields.values()):
            found[outcome(KINDS[kind], fields, values)] += 1

    check()
    return found


def test_classes_and_values_made_at_random() -> None:
    """None is read back as something else, and each of the three outcomes is there."""
    found = run(1500, derandomize=True)
    assert set(found) == {EQUAL, REFUSED_EARLY, REFUSED_LATE}, found
    assert found[EQUAL] > 200, found


@pytest.mark.soak
def test_classes_and_values_made_at_random_for_long() -> None:
    """As above, other ones in every run."""
    found = run(60_000, derandomize=False)
    assert set(found) == {EQUAL, REFUSED_EARLY, REFUSED_LATE}, found
