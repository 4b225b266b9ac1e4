"""Whether what came back is what went in: total, strict about types, and without a value in what it says.

``==`` alone does not answer that: a subclass in a field of its base, NaN, an ``__eq__`` that raises or is missing, the
hour that comes twice. An ``int`` may become the ``float`` or ``Decimal`` that a field is declared as, and a subclass of
a scalar the scalar, as long as the two are equal.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
from collections.abc import Callable
from typing import Any
from uuid import UUID

from relevo.codec.kinds import field_names, is_pydantic, shown

Difference = tuple[str, str]
"""The path from the value on, and what is different there."""

Check = Callable[[Any, Any], Difference | None]

_PLAIN = {str, int, bytes, UUID}
"""Types for which ``==`` says all."""

_MISSING: Any = type("missing", (), {})


def difference(sent: object, back: object) -> Difference | None:
    """Where ``back`` differs from ``sent``, or ``None``. Never raises an ``Exception``."""
    try:
        return _differs(sent, back)
    except RecursionError:
        return "", "nested too deeply to be compared"
    except Exception as error:  # noqa: BLE001 - an __eq__, a property, an iterator of the application's
        return "", f"cannot be compared with what comes back: {type(error).__name__}"


def _differs(sent: Any, back: Any) -> Difference | None:
    cls = type(back)
    check = _CHECKS.get(cls)
    if check is None:
        check = _CHECKS[cls] = _chosen(cls)
    return check(sent, back)


def _becomes(sent: Any, back: Any) -> Difference:
    mine, other = _name(sent), _name(back)
    if mine == other:
        return "", "comes back with another value"
    return "", f"{mine} comes back as {other}: declare the field as {mine}, or give it a value of type {other}"


def _name(value: object) -> str:
    return "None" if value is None else shown(type(value))


def _scalar(sent: Any, back: Any) -> Difference | None:
    if type(sent) is type(back) or isinstance(sent, type(back)):
        if isinstance(sent, bool) is not isinstance(back, bool) or not _equal(sent, back):
            return _becomes(sent, back)
        return None
    return _becomes(sent, back)


def _equal(sent: Any, back: Any) -> bool:
    """A plain ``object.__eq__`` knows identity only: then what the objects hold is compared."""
    if sent == back:
        return True
    cls = type(back)
    if type(sent) is not cls or getattr(cls, "__eq__", None) is not object.__eq__:
        return False
    mine, other = _held(sent), _held(back)
    return bool(mine) and difference(mine, other) is None


def _held(value: object) -> dict[str, Any]:
    held = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            held[name] = getattr(value, name, _MISSING)
    return held


def _same(sent: Any, back: Any) -> Difference | None:
    return None if sent is back else _becomes(sent, back)


def _enum(sent: Any, back: Any) -> Difference | None:
    return None if sent is back or (type(sent) is type(back) and sent == back) else _becomes(sent, back)


def _float(sent: Any, back: float) -> Difference | None:
    if isinstance(sent, bool) or not isinstance(sent, (float, int)):
        return _becomes(sent, back)
    return None if sent == back or (sent != sent and back != back) else _becomes(sent, back)


def _decimal(sent: Any, back: decimal.Decimal) -> Difference | None:
    if type(sent) is decimal.Decimal and str(sent) == str(back):
        return None
    if isinstance(sent, bool) or not isinstance(sent, (decimal.Decimal, int)):
        return _becomes(sent, back)
    if isinstance(sent, int):
        return None if decimal.Decimal(sent) == back else _becomes(sent, back)
    # As texts: a signalling NaN cannot be compared, and 1.0 is not 1.00 where it is printed.
    return None if decimal.Decimal.__str__(sent) == str(back) else _becomes(sent, back)


def _datetime(sent: Any, back: dt.datetime) -> Difference | None:
    if not isinstance(sent, dt.datetime):
        return _becomes(sent, back)
    if sent.tzinfo is dt.UTC and back.tzinfo is dt.UTC:
        return None if sent == back else _becomes(sent, back)
    if (sent.tzinfo is None) is not (back.tzinfo is None):
        return "", "its time zone does not come back"
    mine, other = sent.utcoffset(), back.utcoffset()
    if mine is None or other is None:
        if sent.replace(tzinfo=None) != back.replace(tzinfo=None) or mine is not other:
            return _becomes(sent, back)
        return None if sent.fold == back.fold else ("", "fold=1 of a time without a zone is lost: give an aware time")
    # By hand, since a time in an hour that comes twice is equal to no time in another zone.
    if sent.replace(tzinfo=None) - back.replace(tzinfo=None) == mine - other:
        return None
    return "", "is another moment when it comes back (an offset from UTC has whole minutes)"


def _date(sent: Any, back: dt.date) -> Difference | None:
    if isinstance(sent, dt.datetime):
        return _becomes(sent, back)
    return _scalar(sent, back)


def _time(sent: Any, back: dt.time) -> Difference | None:
    if not isinstance(sent, dt.time):
        return _becomes(sent, back)
    if (sent.tzinfo is None) is not (back.tzinfo is None):
        return "", "its time zone does not come back"
    return None if sent == back else _becomes(sent, back)


def _list(sent: Any, back: list[Any]) -> Difference | None:
    return _items(sent, back) if isinstance(sent, list) else _becomes(sent, back)


def _tuple(sent: Any, back: tuple[Any, ...]) -> Difference | None:
    return _items(sent, back) if type(sent) is type(back) else _becomes(sent, back)


def _items(sent: Any, back: Any) -> Difference | None:
    if len(sent) != len(back):
        return "", f"{len(sent)} items come back as {len(back)}"
    for index, other in enumerate(back):
        check = _CHECKS.get(type(other))
        found = _differs(sent[index], other) if check is None else check(sent[index], other)
        if found is not None:
            return f"[{index}]{found[0]}", found[1]
    return None


def _set(sent: Any, back: Any) -> Difference | None:
    if not isinstance(sent, type(back)):
        return _becomes(sent, back)
    if len(sent) != len(back):
        return "", f"{len(sent)} items come back as {len(back)}"
    found = {each: each for each in back}
    rest: list[Any] | None = None
    for mine in sent:
        other = found.get(mine, _MISSING)
        if other is _MISSING:  # of another hash, or NaN: the long way
            rest = list(back) if rest is None else rest
            other = next((each for each in rest if _differs(mine, each) is None), _MISSING)
        if other is _MISSING or _differs(mine, other) is not None:
            return "[]", f"{_name(mine)} comes back as something else"
    return None


def _dict(sent: Any, back: dict[Any, Any]) -> Difference | None:
    if not isinstance(sent, dict):
        return _becomes(sent, back)
    if len(sent) != len(back):
        return "", f"{len(sent)} items come back as {len(back)}"
    keys = {key: key for key in back}
    for position, (key, mine) in enumerate(sent.items()):
        other = keys.get(key, _MISSING)
        if other is _MISSING and isinstance(key, (float, decimal.Decimal)) and key != key:
            other = list(back)[position]  # NaN is found by no look-up
        if other is _MISSING:
            return "", f"a key of type {_name(key)} does not come back"
        if _differs(key, other) is not None:
            return "", f"a key of type {_name(key)} comes back as {_name(other)}"
        found = _differs(mine, back[other])
        if found is not None:
            return f"[{key!r}]{found[0]}" if isinstance(key, (str, int)) else f"[]{found[0]}", found[1]
    return None


def _structured(cls: type, names: tuple[str, ...]) -> Check:
    pydantic = is_pydantic(cls)

    def check(sent: Any, back: Any) -> Difference | None:
        if type(sent) is not cls:
            return _becomes(sent, back)
        for name in names:
            mine = getattr(sent, name, _MISSING)
            other = getattr(back, name, _MISSING)
            if mine is other:
                continue
            kind = type(mine)  # the usual ones without a call
            if kind is type(other) and (
                (kind in _PLAIN and mine == other) or (kind is decimal.Decimal and str(mine) == str(other))
            ):
                continue
            found = _field(mine, other)
            if found is not None:
                return f".{name}{found[0]}", found[1]
        return _beside(sent, back) if pydantic else None

    return check


def _field(mine: Any, other: Any) -> Difference | None:
    if mine is _MISSING or other is _MISSING:
        return None if mine is other else ("", "is set on one side only")
    return _differs(mine, other)


def _beside(sent: Any, back: Any) -> Difference | None:
    """What a pydantic model holds beside its fields: extra values, which are written, and private ones, which are
    not."""
    for attribute, what in (("__pydantic_extra__", ""), ("__pydantic_private__", "a private attribute: ")):
        mine, other = getattr(sent, attribute, None) or {}, getattr(back, attribute, None) or {}
        for name in {**mine, **other}:
            found = _field(mine.get(name, _MISSING), other.get(name, _MISSING))
            if found is not None:
                return f".{name}{found[0]}", f"{what}{found[1]}"
    return None


def _chosen(cls: type) -> Check:
    """The check for values that come back as ``cls``."""
    names = field_names(cls)
    if names is not None:
        return _structured(cls, names)
    if issubclass(cls, enum.Enum):
        return _enum
    for base, check in _BY_BASE:
        if issubclass(cls, base):
            return check
    return _scalar


_BY_BASE: tuple[tuple[type, Check], ...] = (
    (dt.datetime, _datetime),
    (dt.date, _date),
    (dt.time, _time),
    (decimal.Decimal, _decimal),
    (dict, _dict),
    (list, _list),
    (tuple, _tuple),
    (set, _set),
    (frozenset, _set),
)
_CHECKS: dict[type, Check] = {type(None): _same, bool: _same, float: _float, type: _same}
