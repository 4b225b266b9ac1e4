"""dataclasses, Structs, attrs classes, named tuples: whether msgspec can read what it writes of them, before any value
is there, and the path to the field where it cannot."""

from __future__ import annotations

import dataclasses
import enum
import typing
from typing import Any, NoReturn

import msgspec
from msgspec import inspect as types

from relevo.codec.errors import UnresolvedError
from relevo.codec.kinds import field_names, is_typed_dict, kind_of, shown, title
from relevo.codec.restored import INIT_VAR, stand_in
from relevo.errors import RefusedError

_SAMPLES: tuple[object, ...] = ("", 0, 0.0, True, None, [], {})
"""What a reader makes of JSON without a type."""

_KEYS = (
    *(types.StrType, types.IntType, types.FloatType, types.DecimalType, types.UUIDType, types.BytesType),
    *(types.DateTimeType, types.DateType, types.TimeType, types.TimeDeltaType, types.EnumType, types.AnyType),
)
_BUILTINS = (dict, list, tuple, set, frozenset, str, bytes, int, float)
_FIELDS = {"FieldInfo", "_CountingAttr", "Field"}
_EXACT = (types.StrType, types.IntType, types.FloatType, types.BoolType, types.NoneType, types.UUIDType)

_SAME_FORM = "JSON has one form for all of these, and the reader cannot tell which one it was"
_ADVICE = (
    ("InitVar", "an InitVar is not stored, so it cannot come back: make it a field, or compute it before"),
    ("takes_self", "a default that takes the instance cannot be made when a message is read: compute it before"),
    ("str-like", f"{_SAME_FORM}. Declare one of them"),
    ("dataclass", f"{_SAME_FORM}. Use msgspec Structs with tag=True, or pydantic models with a discriminator"),
    ("Struct types that are not tagged", f"{_SAME_FORM}. Give every Struct tag=True"),
    ("array-like", f"{_SAME_FORM}. Declare one of them"),
    ("dict", f"{_SAME_FORM}. Declare one of them"),
    ("custom type", "a class the codec does not know cannot be one of several: declare it as what JSON has"),
)


def check(cls: type) -> frozenset[str]:
    """Raise ``RefusedError`` with the path of the first field that cannot come back, ``UnresolvedError`` for names that
    are not there yet. Returns the fields whose values come back exactly if they come back equal."""
    if getattr(cls, "__parameters__", ()):
        raise RefusedError(
            f"{title(cls)} is generic, and what its type variables stand for is not written: declare a subclass "
            f"that says it, class …({title(cls)}[…])",
            path=title(cls),
        )
    try:
        msgspec.json.Decoder(cls)
        root = types.type_info(cls)
    except NameError as error:
        raise _unresolved(cls, error) from None
    except Exception as error:  # noqa: BLE001 - TypeError as a rule; an annotation may do anything
        _blame(cls, title(cls), error, set())
    _walk(root, title(cls), set())
    fields = getattr(root, "fields", ())
    return frozenset(field.name for field in fields if _exact(field.type, set()))


def standing_in(cls: type) -> type[msgspec.Struct]:
    """``restored.stand_in``; raises as ``check`` does."""
    try:
        return stand_in(cls)
    except NameError as error:
        raise _unresolved(cls, error) from None
    except Exception as error:  # noqa: BLE001 - as in check
        raise RefusedError(str(error), path=title(cls)) from None


def _unresolved(cls: type, error: NameError) -> UnresolvedError:
    return UnresolvedError(
        f"the name {error.name!r} of an annotation does not exist where the class is defined. Import it at run time, "
        "and define it at the level of the module",
        path=title(cls),
    )


def _walk(node: types.Type, path: str, seen: set[type]) -> None:
    """Refuse what has no JSON form although a decoder can be built for it."""
    match node:
        case types.Metadata():
            _walk(node.type, path, seen)
        case types.CustomType() if not any(isinstance(each, node.cls) for each in _SAMPLES):
            _refuse_custom(node.cls, path)
        case types.ExtType():
            raise RefusedError("an Ext is MessagePack's, and has no JSON form", path=path)
        case types.DictType():
            if not _is_key(node.key_type):
                raise RefusedError(
                    "a key of a JSON object is text: str, int, float, Decimal, UUID, bytes, dates, times and enums can "
                    "be read back from it. Use a list of pairs for others",
                    path=f"{path} (key)",
                )
            _walk(node.value_type, f"{path}[]", seen)
        case types.UnionType():
            for each in node.types:
                _walk(each, path, seen)
        case types.TupleType():
            for index, each in enumerate(node.item_types):
                _walk(each, f"{path}[{index}]", seen)
        case types.ListType() | types.SetType() | types.FrozenSetType() | types.VarTupleType():
            _walk(node.item_type, f"{path}[]", seen)
        case types.StructType() | types.DataclassType() | types.TypedDictType() | types.NamedTupleType():
            if node.cls not in seen:
                seen.add(node.cls)
                _check_class(_class_of(node.cls), path)
                for field in node.fields:
                    _check_default(field.default, f"{path}.{field.name}")
                    _walk(field.type, f"{path}.{field.name}", seen)


def _class_of(cls: Any) -> type:
    """Without the arguments of a generic one."""
    found: type = typing.get_origin(cls) or cls
    return found


def _check_class(cls: type, path: str) -> None:
    if kind_of(cls) in ("dataclass", "attrs") and issubclass(cls, _BUILTINS):
        raise RefusedError(
            f"{title(cls)} is a {next(each for each in _BUILTINS if issubclass(cls, each)).__name__} as well, and only "
            "one of the two is written: give it a field for that",
            path=path,
        )
    if kind_of(cls) == "attrs":
        for name in field_names(cls) or ():
            if name.startswith("_"):
                raise RefusedError(
                    "an attrs field whose name begins with an underscore is not written: rename it (attrs takes the "
                    "underscore off for the argument anyway)",
                    path=f"{path}.{name}",
                )


def _check_default(default: object, path: str) -> None:
    """A field of another library's is a value like any other here, and would be given to handlers."""
    kind = type(default)
    if kind.__name__ in _FIELDS and kind.__module__.partition(".")[0] in ("pydantic", "attr", "dataclasses"):
        raise RefusedError(
            f"the default is a {shown(kind)}, which only {kind.__module__.partition('.')[0]}'s own classes read: use "
            "the field function of the class's own library",
            path=path,
        )


def _is_key(node: types.Type) -> bool:
    match node:
        case types.Metadata():
            return _is_key(node.type)
        case types.UnionType():
            return all(_is_key(each) for each in node.types)
        case types.LiteralType():
            return all(isinstance(each, (str, int)) and not isinstance(each, bool) for each in node.values)
        case types.CustomType():
            return isinstance("", node.cls)
    return isinstance(node, _KEYS)


def _refuse_custom(cls: type, path: str) -> NoReturn:
    if hasattr(cls, "model_validate_json"):
        raise RefusedError(
            f"{cls.__qualname__} is a pydantic model: only pydantic models can have fields of it, so declare the event "
            "as one",
            path=path,
        )
    raise RefusedError(
        f"{shown(cls)} has no JSON form that can be read back: declare the field as str, or as "
        "another type of the table in docs/how-to/declare-events.md, and convert",
        path=path,
    )


def _exact(node: types.Type, seen: set[type]) -> bool:
    """Whether a value that was read back and is equal is the same in every respect, its types included."""
    match node:
        case types.Metadata():
            return _exact(node.type, seen)
        case types.EnumType():
            return not issubclass(node.cls, (str, int))
        case types.ListType():
            return _exact(node.item_type, seen)
        case types.DictType():
            return _exact(node.key_type, seen) and _exact(node.value_type, seen)
        case types.UnionType():
            return all(_exact(each, seen) for each in node.types)
        case types.StructType() | types.DataclassType():
            if node.cls in seen:
                return True
            seen.add(node.cls)
            return compares_fields(_class_of(node.cls)) and all(_exact(field.type, seen) for field in node.fields)
    return isinstance(node, _EXACT)


def compares_fields(cls: type) -> bool:
    """Whether ``==`` of this class is the made one, of all fields."""
    if kind_of(cls) == "struct":
        made = getattr(cls, "__eq__", None) is msgspec.Struct.__eq__
        return made and bool(cls.__struct_config__.eq)  # type: ignore[attr-defined]
    if kind_of(cls) != "dataclass":
        return False
    code = getattr(cls.__dict__.get("__eq__"), "__code__", None)  # one of a base compares the base's fields
    made = code is not None and code.co_filename == "<string>"
    return made and all(field.compare for field in dataclasses.fields(cls))


def _blame(type_: Any, path: str, error: Exception, seen: set[Any]) -> NoReturn:
    """Raise ``RefusedError`` for the innermost part of ``type_`` that no decoder can be built for."""
    for step, part in _parts(type_):
        try:
            known = part in seen
        except TypeError:
            known = False
        if known:
            continue
        try:
            msgspec.json.Decoder(part)
        except Exception as inner:  # noqa: BLE001 - as in check
            seen.add(type_)
            _blame(part, f"{path}{step}", inner, seen)
    text = str(error)
    if "InitVar" in text and isinstance(type_, type):
        fields = getattr(type_, "__dataclass_fields__", {})
        path += next((f".{name}" for name, field in fields.items() if field._field_type is INIT_VAR), "")
    advice = next((advice for word, advice in _ADVICE if word in text), None)
    raise RefusedError(f"{advice} ({text})" if advice else text, path=path) from None


def _parts(type_: Any) -> list[tuple[str, Any]]:
    if isinstance(type_, type) and not typing.get_args(type_):
        if issubclass(type_, enum.Enum):
            return []
        try:
            hints = typing.get_type_hints(type_, include_extras=True)
        except Exception:  # noqa: BLE001 - then the class as a whole is at fault
            return []
        names = field_names(type_) or (tuple(hints) if is_typed_dict(type_) else ())
        return [(f".{name}", hints[name]) for name in names if name in hints]
    origin, parts = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Annotated:
        return [("", parts[0])]
    if origin is typing.Literal or not parts:
        return []
    step = "" if origin is typing.Union or type(type_).__name__ == "UnionType" else "[]"
    return [(step, part) for part in parts if part is not ...]
