"""Properties of AMQP messages that pamqp cannot decode: what can be read of them, and what was wrong.

pamqp raises for a time that no ``datetime`` holds, for names and short strings that are not UTF-8, for types it does
not know, and for tables nested deeper than Python's stack. aiormq decodes in the task that reads the connection, so one
message of a stranger would end that connection each time it is delivered. Here the same bytes are read again by
functions that cannot raise. Only connections that Relevo opened decode like this: those of the application, in the
same process, stay as they were.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from functools import wraps
from typing import Any, Final

from relevo.times import LATEST, from_us

PROBLEM: Final = "relevo_problem"
"""The attribute of a content header that says what could not be decoded."""
DEPTH_MAX: Final = 32
_FIXED: Final = struct.Struct(">HHQ")
_SECONDS_MAX: Final = 0xFFFFFFFF  # pamqp: what is larger is milliseconds

_ours: ContextVar[bool] = ContextVar("relevo_amqp", default=False)


@contextmanager
def reading_anything() -> Iterator[None]:
    """Connections that are opened inside survive any message: their tasks inherit this context."""
    _install()
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


def _install() -> None:
    """Put the second attempt behind pamqp's own decoders. Once per process; the good case stays pamqp's."""
    from pamqp import commands, header

    if getattr(header.ContentHeader.unmarshal, "relevo", False):
        return
    header.ContentHeader.unmarshal = _guarded(header.ContentHeader.unmarshal)  # type: ignore[method-assign, assignment]
    commands.Basic.Deliver.unmarshal = _guarded_delivery(commands.Basic.Deliver.unmarshal)  # type: ignore[method-assign, assignment]


def _guarded(unmarshal: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
    @wraps(unmarshal)
    def total(header: Any, data: bytes) -> None:
        try:
            unmarshal(header, data)
        except Exception as error:
            if not _ours.get() or len(data) < _FIXED.size:
                raise  # no frame of AMQP at all: the connection is out of step
            read_again(header, data, error)

    total.relevo = True  # type: ignore[attr-defined]
    return total


def _guarded_delivery(unmarshal: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
    """A routing key is a stranger's too, and not part of the properties."""

    @wraps(unmarshal)
    def total(frame: Any, data: bytes) -> None:
        try:
            unmarshal(frame, data)
        except UnicodeDecodeError:
            if not _ours.get():
                raise
            reader = Reader(data)
            frame.consumer_tag, frame.delivery_tag = reader.value_of("shortstr"), reader.value_of("longlong")
            frame.redelivered = bool(reader.value_of("octet") & 1)
            frame.exchange, frame.routing_key = reader.value_of("shortstr"), reader.value_of("shortstr")

    return total


def read_again(header: Any, data: bytes, error: Exception) -> None:
    """Set class, size and properties of a content header from its frame, and ``PROBLEM``. Never raises for a frame of
    at least twelve bytes."""
    header.class_id, header.weight, header.body_size = _FIXED.unpack_from(data)
    reader = Reader(data, _FIXED.size)
    properties = type(header.properties)()
    try:
        flags = reader.flags()
        for name in properties.__slots__:
            if flags & properties.flags[name]:
                setattr(properties, name, reader.value_of(getattr(properties, f"_{name}")))
    except (IndexError, struct.error):
        reader.problems.append("the properties end too early")
    header.properties = properties
    problems = list(dict.fromkeys(reader.problems)) or [f"{type(error).__name__}: {error}"]
    setattr(header, PROBLEM, "; ".join(problems[:5])[:1_000])


class Reader:
    """Walks the bytes once. ``problems``: what was replaced by something that can be told."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at
        self.problems: list[str] = []

    def flags(self) -> int:
        flags, shift = 0, 0
        while True:
            part: int = self._number(">H")
            flags |= part << shift
            if not part & 1 or shift > 64:
                return flags
            shift += 16

    def value_of(self, type_name: str) -> Any:
        """A property, or an argument of a delivery: these types are all there are."""
        match type_name:
            case "shortstr":
                return self._short_text("a property")
            case "octet":
                return self._number(">B")
            case "longlong":
                return self._number(">q")
            case "timestamp":
                return self._time()
            case _:
                return self._table(0)

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise IndexError(count)
        self._at += count
        return found

    def _short_text(self, what: str) -> str:
        raw = self._bytes(self._number(">B"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "backslashreplace")  # two that differ stay two: one may be an id
            self.problems.append(f"{what} is not UTF-8: {text!r}")
            return text

    def _time(self) -> Any:
        value = self._number(">Q")
        time = from_us(value * 1_000_000 if value <= _SECONDS_MAX else value * 1_000)
        if time is LATEST:
            self.problems.append(f"a timestamp is beyond what a date can be: {value}")
        return time

    def _table(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in self._within(self._number(">I"), depth):
            name = self._short_text("a header's name")
            found.setdefault(name, self._value(depth))
        return found

    def _array(self, depth: int) -> list[Any]:
        return [self._value(depth) for _ in self._within(self._number(">I"), depth)]

    def _within(self, size: int, depth: int) -> Iterator[None]:
        """Until ``size`` bytes are read; what cannot be read of them is passed over."""
        end = self._at + size
        if end > len(self._data):
            raise IndexError(size)
        if depth >= DEPTH_MAX:
            self.problems.append(f"headers are nested deeper than {DEPTH_MAX} levels")
            self._at = end
        while self._at < end:
            yield
        self._at = end

    def _value(self, depth: int) -> Any:
        kind = self._bytes(1)
        if (form := _NUMBERS.get(kind)) is not None:
            return self._number(form)
        match kind:
            case b"t":
                return bool(self._number(">B"))
            case b"D":
                places = self._number(">B")
                return Decimal(self._number(">I")).scaleb(-places)
            case b"S" | b"x":
                raw = self._bytes(self._number(">I"))
                return _text_or_bytes(raw) if kind == b"S" else bytearray(raw)
            case b"T":
                return self._time()
            case b"F":
                return self._table(depth + 1)
            case b"A":
                return self._array(depth + 1)
            case b"V" | b"\0":
                return None
        self.problems.append(f"a header is of an unknown type: {kind!r}")
        self._at = len(self._data)  # of unknown length: nothing behind it can be read
        return None


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


_NUMBERS: Final = {
    b"b": ">b",
    b"B": ">B",
    b"s": ">h",
    b"u": ">H",
    b"I": ">i",
    b"i": ">I",
    b"l": ">q",
    b"L": ">q",
    b"f": ">f",
    b"d": ">d",
}
"""As pamqp reads them."""
