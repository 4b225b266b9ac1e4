"""Own durations. Due times, leases and retention go by the database's clock, never by this.

Whoever reads the time is given a ``Clock``; waiting goes by the event loop. A test that simulates hours in seconds
hands in both: a clock that reads the simulated loop's time, and that loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def boottime_s() -> float:
    """Seconds by a clock that also runs while the machine sleeps, where there is one (Linux); else the monotonic one.

    A lease must be seen to have ended after a suspend, which ``CLOCK_MONOTONIC`` does not count.
    """
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


def utc_now() -> datetime:
    """The wall clock: for people to read, never for a decision."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, repr=False)
class Clock:
    """``seconds``: for durations, from an arbitrary start. ``wall``: for people."""

    seconds: Callable[[], float] = boottime_s
    wall: Callable[[], datetime] = utc_now

    def __repr__(self) -> str:
        return "Clock()"


SYSTEM = Clock()
