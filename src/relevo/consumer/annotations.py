"""What a handler's first parameter is annotated as, against what it is given."""

from __future__ import annotations

import contextlib
import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from typing import Any

from relevo.consumer.event import Event
from relevo.errors import ConfigError
from relevo.event import Declaration
from relevo.message import Message

_MANY = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable, abc.Reversible, abc.Sized)


def check_first(
    function: Callable[..., Any], data_type: type | None, takes_many: bool, names: Mapping[str, Any]
) -> None:
    """Raise ``ConfigError`` if the first parameter is annotated as something else than the handler is given. ``names``:
    local ones where the function is defined. An annotation whose names exist for the type checker only is not judged.
    """
    parameter = next(iter(inspect.signature(function).parameters.values()))
    annotation = _evaluated(function, parameter, names)
    if annotation in (inspect.Parameter.empty, Any, object) or isinstance(annotation, (str, typing.TypeVar)):
        return
    given = f"Event[{'Message' if data_type is None else data_type.__qualname__}]"
    given = f"list[{given}]" if takes_many else given
    problem = _many(annotation, data_type) if takes_many else _one(annotation, data_type)
    if problem is not None:
        raise ConfigError(
            f"handler {function.__qualname__!r} annotates {parameter.name!r} as {_text(annotation)}, and is given "
            f"{given}: {problem}"
        )


def _evaluated(function: Any, parameter: inspect.Parameter, names: Mapping[str, Any]) -> Any:
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    inner = inspect.unwrap(getattr(function, "__func__", function))  # a decorator's own module knows other names
    try:
        return eval(annotation, inner.__globals__, {**names, **_closed(inner)})
    except Exception:  # noqa: BLE001 - names for type checking only, or given later
        return annotation


def _closed(function: Any) -> dict[str, Any]:
    """The names of enclosing functions that have a value already."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # it comes later
            found[name] = cell.cell_contents
    return found


def _one(annotation: Any, data_type: type | None) -> str | None:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _one(typing.get_args(annotation)[0], data_type)
    if origin is typing.Union or origin is types.UnionType:
        problems = [_one(each, data_type) for each in typing.get_args(annotation)]
        return None if None in problems else problems[0]
    cls = origin or annotation
    if cls is Event:
        return _data(typing.get_args(annotation), data_type)
    if not isinstance(cls, type) or (issubclass(Event, cls) and cls not in _MANY):
        return None
    if cls in _MANY:
        return "a list of events is what on_batch gives"
    if isinstance(getattr(cls, "__relevo__", None), Declaration) or cls is data_type:
        return f"the data is in event.data: write Event[{cls.__qualname__}]"
    if cls is Message:
        return "the message is in event.data: write Event[Message]"
    return "the event is the first parameter, and tx the second"


def _many(annotation: Any, data_type: type | None) -> str | None:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _many(typing.get_args(annotation)[0], data_type)
    cls = origin or annotation
    if cls not in _MANY:
        return "on_batch gives a list; on gives one event" if isinstance(cls, type) else None
    parts = typing.get_args(annotation)
    if not parts or parts[0] in (Any, object) or isinstance(parts[0], (str, typing.TypeVar, typing.ForwardRef)):
        return None
    return _one(parts[0], data_type)


def _data(parts: tuple[Any, ...], data_type: type | None) -> str | None:
    """Whether ``Event[parts]`` can hold what the selector gives."""
    if not parts or parts[0] in (Any, object) or isinstance(parts[0], (str, typing.TypeVar, typing.ForwardRef)):
        return None
    inner = parts[0]
    if typing.get_origin(inner) is typing.Annotated:
        inner = typing.get_args(inner)[0]
    if typing.get_origin(inner) in (typing.Union, types.UnionType):
        problems = [_data((each,), data_type) for each in typing.get_args(inner)]
        return None if None in problems else problems[0]
    cls = typing.get_origin(inner) or inner
    if not isinstance(cls, type):
        return None
    if data_type is None:
        return None if issubclass(Message, cls) else f"a name or pattern gives the raw message: use on({cls.__name__})"
    try:
        fits = issubclass(data_type, cls)
    except TypeError:  # a protocol that knows instances only
        return None
    return None if fits else "the class that is declared and the one of the annotation are not the same"


def _text(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
