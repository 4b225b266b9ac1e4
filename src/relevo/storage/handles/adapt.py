"""Python values to parameters, per dialect: the one place that knows how each database stores what Relevo writes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from relevo.ports.database import Dialect
from relevo.script import Ids

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def adapt(dialect: Dialect, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """``params`` as the drivers of ``dialect`` take them, regardless of the types that the application registered."""
    if dialect == "postgresql":
        return {name: to_plain(value) for name, value in params.items()}
    return {name: _to_sqlite(value) for name, value in params.items()}


def to_plain(value: Any) -> Any:
    """Ids and times as text, which Relevo's statements cast; numbers, text and bytes as they are. An array of nothing
    but nulls is no array: there is no value in it that would say its type."""
    if type(value) is UUID:
        return str(value)
    if type(value) is Ids:
        return value.literal
    if type(value) is datetime:
        return value.isoformat()
    if type(value) is list:
        return [to_plain(each) for each in value] if any(each is not None for each in value) else None
    return value


def _to_sqlite(value: Any) -> Any:
    match value:
        case bool():
            return int(value)
        case UUID():
            return str(value)
        case datetime():
            return to_ms(value)
        case list() | tuple():
            return msgspec.json.encode([_to_sqlite(each) for each in value]).decode()
    return value


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970 UTC, rounded down; ``moment`` must be aware."""
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(milliseconds: int) -> datetime:
    """The aware UTC time of ``milliseconds`` since 1970."""
    return _EPOCH + milliseconds * _MILLISECOND
