"""pydantic models: how one is written so that it can be read back, decided at the declaration, without importing
pydantic."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from relevo.codec.errors import UnresolvedError
from relevo.codec.kinds import is_pydantic, is_typed_dict, shown, title
from relevo.errors import RefusedError

BY_NAME_SINCE = (2, 11)
_LATER = {"FutureDate", "FutureDatetime"}
_HIDDEN = {"SecretStr", "SecretBytes", "Secret"}


@dataclass(slots=True)
class Form:
    """How a model is written and read. ``by_alias``: keys are the aliases, else the names; ``by_name``: reading has to
    take names where the model does not. ``strings``: NaN may be written as text. ``bytes_differ``: in a model of the
    tree bytes are written in another way than they are read."""

    by_alias: bool = True
    by_name: bool = False
    strings: bool = False
    aliases: str | None = None
    """The path of a field whose alias is written and not read."""
    names: str | None = None
    """The path of a field whose name would not be read."""
    seen: set[type] = field(default_factory=set)


def check(cls: Any) -> Form:
    """Raise ``RefusedError`` with the path of a field that cannot come back, ``UnresolvedError`` for a model that is
    not complete yet."""
    if not cls.__pydantic_complete__ and not cls.model_rebuild(raise_errors=False):
        raise UnresolvedError(
            "an annotation names a type that does not exist where the class is defined. Import it at run time, and "
            "define it at the level of the module, or call model_rebuild()",
            path=title(cls),
        )
    form = Form()
    _model(cls, title(cls), form)
    if form.aliases is not None:
        form.by_alias = False
        if form.names is not None:
            if _version() < BY_NAME_SINCE:
                raise RefusedError(
                    "neither the alias that is written nor the field's name is read: give alias=, which is both, or "
                    "set populate_by_name",
                    path=form.names,
                )
            form.by_name = True
    return form


def _version() -> tuple[int, int]:
    text = str(getattr(sys.modules.get("pydantic"), "VERSION", "2.0")).split(".")
    return int(text[0]), int(text[1])


def _model(cls: Any, path: str, form: Form) -> None:
    if cls in form.seen:
        return
    form.seen.add(cls)
    if cls.__pydantic_generic_metadata__["parameters"]:
        raise RefusedError(
            f"{title(cls)} is generic, and what its type variables stand for is not written: name it, {title(cls)}[…]",
            path=path,
        )
    config = cls.model_config
    form.strings = form.strings or config.get("ser_json_inf_nan") == "strings"
    decorators = cls.__pydantic_decorators__
    own_writer = bool(decorators.model_serializers)  # what it writes is its own affair: the append compares
    written = {name for each in decorators.field_serializers.values() for name in each.info.fields}
    read = {name for each in decorators.field_validators.values() for name in each.info.fields}
    root = getattr(cls, "__pydantic_root_model__", False)
    for name, info in cls.model_fields.items():
        here = path if root else f"{path}.{name}"
        if not root:
            _keys(name, info, config, here, form)
        if own_writer:
            continue
        if info.exclude:
            if info.is_required():
                raise RefusedError(
                    "the field is excluded, so it is not written, and a reader requires it: give it a default, or "
                    "leave exclude out",
                    path=here,
                )
            continue
        own = {name, "*"} & written or any(type(each).__name__.endswith("Serializer") for each in info.metadata)
        if own or "json_encoders" in config:
            continue
        if any(type(each).__name__ == "PathType" for each in info.metadata):
            _refuse_later("FilePath, DirectoryPath or NewPath", here)
        custom = {name, "*"} & read or any(type(each).__name__.endswith("Validator") for each in info.metadata)
        _walk(info.annotation, here, form, config, bool(custom))


def _keys(name: str, info: Any, config: Any, path: str, form: Form) -> None:
    """Note whether the field is read under the key that it is written under, by alias and by name."""
    alias = info.validation_alias if info.validation_alias is not None else info.alias
    accepted = (
        {name} if alias is None else {each for each in getattr(alias, "choices", [alias]) if isinstance(each, str)}
    )
    if config.get("populate_by_name") or config.get("validate_by_name"):
        accepted.add(name)
    if config.get("validate_by_alias") is False:
        accepted = {name}
    written = info.serialization_alias if info.serialization_alias is not None else (info.alias or name)
    if written not in accepted:
        form.aliases = form.aliases or path
    if name not in accepted:
        form.names = form.names or path


def _walk(annotation: Any, path: str, form: Form, config: Any, custom: bool) -> None:
    annotation = _unwrapped(annotation)
    parts = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return
    if origin is typing.Annotated and any(type(each).__name__.endswith("Serializer") for each in parts[1:]):
        return
    cls = origin if isinstance(origin, type) else annotation
    if isinstance(cls, type):
        _class(cls, path, form, config, custom)
    if origin is typing.Annotated:
        if any(type(each).__name__ == "PathType" for each in parts[1:]):
            _refuse_later("FilePath, DirectoryPath or NewPath", path)
        custom = custom or any(type(each).__name__.endswith("Validator") for each in parts[1:])
        parts = parts[:1]
    step = "[]" if isinstance(origin, type) and issubclass(origin, _containers()) else ""
    for part in parts:
        if part is not ... and not isinstance(part, (list, str)):
            _walk(part, f"{path}{step}", form, config, custom)


def _unwrapped(annotation: Any) -> Any:
    """What a ``NewType`` or a ``type`` alias stands for."""
    while True:
        if hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def _refuse_later(name: str, path: str) -> NoReturn:
    raise RefusedError(
        f"whether a value fits {name} depends on when and where it is read: declare the field without that condition, "
        "and check it where the event is made",
        path=path,
    )


def _containers() -> tuple[type, ...]:
    from collections import abc

    return (abc.Collection, abc.Iterable)


def _class(cls: type, path: str, form: Form, config: Any, custom: bool) -> None:
    if any(base.__name__ in _HIDDEN and base.__module__.startswith("pydantic") for base in cls.__mro__):
        raise RefusedError(
            f"a {cls.__name__} is written as '**********', so the value would be lost: keep secrets out of events, or "
            "give the field a serializer (@field_serializer) that writes what may be seen",
            path=path,
        )
    if cls.__module__.startswith("pydantic") and cls.__name__ in _LATER and not custom:
        _refuse_later(cls.__name__, path)
    if is_pydantic(cls):
        return _model(cls, path, form)
    if issubclass(cls, (bytes, bytearray)) and not custom:
        written, read = config.get("ser_json_bytes", "utf8"), config.get("val_json_bytes", "utf8")
        if written != read:
            raise RefusedError(
                f"bytes are written as {written} and read as {read}: set val_json_bytes={written!r} beside "
                f"ser_json_bytes={written!r}",
                path=path,
            )
    if config.get("arbitrary_types_allowed") and not custom and _arbitrary(cls):
        raise RefusedError(
            f"{shown(cls)} is a type pydantic cannot read from JSON: give the field a "
            "@field_serializer and a validator (mode='before'), or declare it as what JSON has",
            path=path,
        )
    if cls in form.seen:
        return None
    names: Callable[[], list[str]] | None = None
    if dataclasses.is_dataclass(cls):
        names = lambda: [each.name for each in dataclasses.fields(cls)]  # noqa: E731
    elif is_typed_dict(cls) or hasattr(cls, "_fields"):
        names = lambda: list(getattr(cls, "__annotations__", {}))  # noqa: E731
    if names is None:
        return None
    form.seen.add(cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - pydantic found them; what cannot be seen here is compared at the append
        return None
    for name in names():
        if name in hints:
            _walk(hints[name], f"{path}.{name}", form, config, custom)
    return None


def _arbitrary(cls: type) -> bool:
    pydantic = sys.modules["pydantic"]
    try:
        pydantic.TypeAdapter(cls)
    except pydantic.errors.PydanticSchemaGenerationError:
        return True
    except Exception:  # noqa: BLE001 - not what is asked here
        return False
    return False
