"""What can be said about one message beside its event: once as a value, once as the keyword arguments of ``add``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import EllipsisType
from typing import TypedDict
from uuid import UUID

KeyArgument = str | bytes | int | UUID | None | EllipsisType
"""``...`` (the default) takes the key of the declaration; ``None`` means no key, no order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOptions:
    """``topic`` and ``key`` override the declaration's. ``headers`` add to what the context carries, and
    ``correlation_id`` and ``causation_id`` to both. ``at`` or ``after``: not before then, by the database's clock."""

    topic: str | None = None
    key: KeyArgument = ...
    headers: Mapping[str, str] | None = None
    aggregate_type: str | None = None
    aggregate_id: str | UUID | int | None = None
    aggregate_version: int | None = None
    event_id: UUID | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    at: datetime | None = None
    after: timedelta | None = None


DEFAULT = AddOptions()


class AddArguments(TypedDict, total=False):
    """``AddOptions`` for the type checker, as ``Outbox.add(handle, event, **options)`` takes them."""

    topic: str | None
    key: KeyArgument
    headers: Mapping[str, str] | None
    aggregate_type: str | None
    aggregate_id: str | UUID | int | None
    aggregate_version: int | None
    event_id: UUID | None
    correlation_id: str | None
    causation_id: str | None
    at: datetime | None
    after: timedelta | None
