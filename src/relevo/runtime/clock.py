"""Own durations. Due times, leases and retention go by the database's clock, never by this."""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def boottime_s() -> float:
    """Seconds by a clock that also runs while the machine sleeps, where there is one (Linux); else the monotonic one.

    A lease must be seen to have ended after a suspend, which ``CLOCK_MONOTONIC`` does not count.
    """
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)
