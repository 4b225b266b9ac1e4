"""Reading objects that other people's code made: names, attributes and texts, without ever raising.

An exception is such an object. Its ``__str__`` may raise or return something else than text, its attributes may be
properties that raise, its class may lie about its name; a failure is booked all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

_NAME: Final = type.__dict__["__qualname__"].__get__
_MODULE: Final = type.__dict__["__module__"].__get__
_CONTEXT: Final = BaseException.__dict__["__context__"].__get__
_CAUSE: Final = BaseException.__dict__["__cause__"].__get__


def name_of(kind: type) -> str:
    """``module.Class``, or ``Class`` for a builtin one; its metaclass is not asked."""
    name = str.__str__(_NAME(kind))
    try:
        module = _MODULE(kind)
    except AttributeError:
        module = None
    if not issubclass(type(module), str) or module == "builtins":
        return name
    return f"{str.__str__(module)}.{name}"


def attribute(value: object, name: str) -> Any:
    """The attribute, or ``None`` where there is none, or where reading it raises."""
    try:
        return getattr(value, name, None)
    except BaseException:  # noqa: BLE001 - a property of the application's
        return None


def cause_of(error: BaseException) -> BaseException | None:
    """What ``error`` was raised from."""
    found: BaseException | None = _CAUSE(error)
    return found


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """``error``, what it was raised from, and what was being handled when it was raised; each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = _CAUSE(current) or _CONTEXT(current)


def text_of(value: object) -> str:
    """``value`` as text: what ``str`` says, type and text of an exception, or a text made from the type's name."""
    if type(value) is str:
        return value
    try:
        if issubclass(type(value), (bytes, bytearray)):
            return bytes(value).decode("utf-8", "backslashreplace")  # type: ignore[call-overload,no-any-return]
        if issubclass(type(value), BaseException):
            text = text_of_error(value)  # type: ignore[arg-type]
            return f"{name_of(type(value))}: {text}" if text else name_of(type(value))
        return str.__str__(str(value))
    except BaseException as failed:  # noqa: BLE001 - a broken __str__ must not hide what it belongs to
        return f"(the text of a {name_of(type(value))} could not be made: {name_of(type(failed))})"


def text_of_error(error: BaseException) -> str:
    """What ``str(error)`` says, or why it says nothing."""
    try:
        return str.__str__(str(error))
    except BaseException as failed:  # noqa: BLE001 - a broken __str__ must not hide the error it belongs to
        return f"(its text could not be made: {name_of(type(failed))})"


def delay_of(after: object) -> timedelta | None:
    """``after`` as a time; ``None`` for what is none, or is negative or not finite. Cut at the longest there is."""
    if issubclass(type(after), timedelta):
        delay: timedelta = after  # type: ignore[assignment]
        return delay if delay >= timedelta(0) else None
    if issubclass(type(after), (str, bytes, bytearray)):
        return None
    if type(after) not in (int, float):
        try:
            after = float(after)  # type: ignore[arg-type]
        except BaseException:  # noqa: BLE001 - any object may be given
            return None
        if type(after) is not float:
            return None
    try:
        seconds = float(after)  # type: ignore[arg-type]
    except OverflowError:
        return timedelta.max if after > 0 else None  # type: ignore[operator]
    if math.isnan(seconds) or seconds < 0 or seconds == math.inf:
        return None
    return timedelta(seconds=seconds) if seconds < timedelta.max.total_seconds() else timedelta.max
