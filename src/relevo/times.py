"""Times that everything here can keep: a message of a stranger may carry any."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, 23, 59, 59, 999000, tzinfo=UTC)
"""A day within what ``datetime`` holds, so that the time stays one in every time zone; and whole milliseconds, so that
no rounding of a database reaches beyond."""

_MICROSECOND: Final = timedelta(microseconds=1)
_YEAR_5000_MS: Final = 95_617_584_000_000


def clamped(time: datetime) -> datetime:
    """``time`` in UTC, within ``EARLIEST`` and ``LATEST``; a naive one is taken for UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    if 1 < time.year < 9999:
        return time if time.tzinfo is UTC else time.astimezone(UTC)
    if EARLIEST <= time <= LATEST:  # a comparison cannot overflow, a conversion can
        return time.astimezone(UTC)
    return EARLIEST if time < EARLIEST else LATEST


def from_us(microseconds: int) -> datetime:
    """From microseconds since 1970, clamped: any number is a time."""
    try:
        return clamped(EPOCH + timedelta(microseconds=microseconds))
    except OverflowError:
        return EARLIEST if microseconds < 0 else LATEST


def from_ms(milliseconds: int) -> datetime:
    """From milliseconds since 1970, clamped: any number is a time."""
    if 0 <= milliseconds < _YEAR_5000_MS:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    return from_us(milliseconds * 1000)


def to_us(time: datetime) -> int:
    """Microseconds since 1970 of ``time``, clamped."""
    return (clamped(time) - EPOCH) // _MICROSECOND


def parsed(text: str) -> datetime | None:
    """The time that an ISO 8601 text says, clamped; ``None`` for any other text, and where ``datetime`` cannot hold
    that time in UTC."""
    try:
        time = datetime.fromisoformat(text)
        return clamped(time if time.tzinfo is None else time.astimezone(UTC))
    except (ValueError, OverflowError):
        return None
