"""The JSON codec: data to bytes once, at the append; bytes to data once, at the handler.

msgspec writes dataclasses, Structs, attrs classes and named tuples; pydantic models write and read themselves. Encoder
and decoder of a class are made together, at its declaration, which refuses what visibly cannot make the round trip; at
the append what was written is read back and compared. Everything refused is refused with its path.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from relevo.codec import models, restored, structure
from relevo.codec.equality import difference
from relevo.codec.errors import UndecodableError as UndecodableError
from relevo.codec.errors import UnresolvedError as UnresolvedError
from relevo.codec.errors import placed, reason
from relevo.codec.kinds import field_names as field_names
from relevo.codec.kinds import is_pydantic, title
from relevo.codec.kinds import is_typed_dict as is_typed_dict
from relevo.codec.kinds import kind_of as kind_of
from relevo.codec.leaves import explain, refuse_nul
from relevo.errors import RefusedError

T = TypeVar("T")
_encoder = msgspec.json.Encoder()
_codecs: dict[Any, Codec[Any]] = {}


class Codec(Generic[T]):
    """Writes and reads one class. Made by ``codec_of``. Thread-safe."""

    __slots__ = ("_exact", "_form", "_read", "cls")

    def __init__(self, cls: type[T]) -> None:
        """Raises ``RefusedError`` with the path of a field that cannot come back; ``UnresolvedError`` as long as a name
        in the annotations does not exist."""
        self.cls = cls
        self._exact: Callable[[Any], Any] | None = None
        self._form: models.Form | None = None
        self._read: Callable[[bytes], Any]
        if is_pydantic(cls):
            self._form = models.check(cls)
            read: Any = cls.model_validate_json  # type: ignore[attr-defined]
            self._read = (lambda payload: read(payload, by_name=True)) if self._form.by_name else read
            return
        if restored.has_init_vars(cls):
            struct = structure.standing_in(cls)
            structure.check(struct)
            self._read = restored.reader(cls, struct)
            return
        if kind_of(cls) is not None:
            self._plan(structure.check(cls))
        try:
            self._read = msgspec.json.Decoder(cls).decode
        except TypeError as error:
            raise RefusedError(str(error), path=title(cls)) from None

    def _plan(self, exact: frozenset[str]) -> None:
        names = field_names(self.cls) or ()
        if names and exact.issuperset(names):
            self._exact = attrgetter(*names)

    def encode(self, data: T, *, validate: bool = True) -> bytes:
        """JSON bytes of ``data``. Raises ``RefusedError`` with a path for an unknown type, NUL, lone surrogate, NaN or
        infinity, and, unless ``validate`` is false, for a value that would not come back as it is."""
        payload = _write(data, self._form)
        if validate:
            self._validate(data, payload)
        return payload

    def decode(self, payload: bytes | None) -> T:
        """An instance from JSON bytes; raises ``UndecodableError`` with msgspec's or pydantic's path."""
        if payload is None:
            raise UndecodableError("the payload is empty (a tombstone), and the handler expects data")
        try:
            return self._read(payload)  # type: ignore[no-any-return]
        except (ValueError, msgspec.MsgspecError) as error:
            raise UndecodableError(reason(error)) from error

    def _validate(self, data: T, payload: bytes) -> None:
        try:
            back = self._read(payload)
        except Exception as error:  # noqa: BLE001 - a __post_init__ or a validator may raise anything
            path, text = placed(reason(error))
            raise RefusedError(f"it could not be read back: {text}", path=path) from None
        if self._exact is not None and type(data) is self.cls and self._quickly(data, back, payload):
            return
        found = difference(data, back)
        if found is not None:
            raise RefusedError(found[1], path=f"${found[0]}")

    def _quickly(self, data: T, back: T, payload: bytes) -> bool:
        """Whether the same is known at a tenth of the price. Written again, for what is equal and of another type."""
        exact = self._exact
        assert exact is not None
        try:
            return bool(exact(data) == exact(back)) and _encoder.encode(back) == payload
        except Exception:  # noqa: BLE001 - an __eq__ of the application's; ``difference`` says which
            return False


def codec_of(cls: type[T]) -> Codec[T]:
    """The codec of a class, made when it is first asked for. Raises as ``Codec`` does."""
    found = _codecs.get(cls)
    if found is None:
        found = _codecs[cls] = Codec(cls)
    return found


def encode(data: object, *, validate: bool = True) -> bytes:
    """As ``Codec.encode``. Without ``validate`` also for a class that cannot be read."""
    cls = type(data)
    if not validate and not is_pydantic(cls):
        return _write(data, None)
    return codec_of(cls).encode(data, validate=validate)


def decode(payload: bytes | None, cls: type[T]) -> T:
    """As ``Codec.decode``."""
    return codec_of(cls).decode(payload)


def _write(data: Any, form: models.Form | None) -> bytes:
    try:
        payload = _encoder.encode(data) if form is None else _dump(data, form)
    except Exception as error:  # noqa: BLE001 - a serializer of the application's may raise anything
        explain(data)
        raise RefusedError(_text(error), path="$" if form is None else _where(data, form)) from None
    if b"null" in payload:  # NaN and infinity are written as null
        explain(data, floats=form is None or not form.strings)
    if b"\\u0000" in payload:
        explain(data)
        refuse_nul(payload)
    if form is not None and (b"NaN" in payload or b"Infinity" in payload):
        _refuse_constants(data, payload)
    return payload


def _refuse_constants(data: object, payload: bytes) -> None:
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
    except msgspec.DecodeError:
        explain(data)
        raise RefusedError("NaN and infinity are not JSON", path="$") from None


def _dump(model: Any, form: models.Form, **only: Any) -> bytes:
    text: str = model.model_dump_json(by_alias=form.by_alias, round_trip=True, warnings=False, **only)
    return text.encode()


def _where(model: Any, form: models.Form) -> str:
    """The path of the first field that cannot be written."""
    for name in type(model).model_fields:
        try:
            _dump(model, form, include={name})
        except Exception:  # noqa: BLE001 - this one
            return f"$.{name}"
    return "$"


def _text(error: Exception) -> str:
    """The text of what raised, but not of what a function of the application's raised, which may hold the value."""
    text = str(error)
    if isinstance(error, (TypeError, OverflowError, RecursionError, UnicodeEncodeError)):
        return text
    if "PydanticSerializationError" in type(error).__name__ and "calling function" not in text:
        return text
    return f"{type(error).__name__} while it was written"
