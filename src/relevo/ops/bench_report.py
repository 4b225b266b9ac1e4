"""What ``relevo bench`` says: before it does anything, and at its end."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from relevo._version import __version__


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done. ``bytes``: of one payload. ``rate`` events/s for ``seconds`` s for the latency."""

    database: str
    broker: str
    source: str
    topic: str
    consumer: str
    events: int
    bytes: int
    writers: int
    rate: int
    seconds: float

    @property
    def followed(self) -> int:
        """Events of the second part."""
        return int(self.rate * self.seconds)


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from the return of the commit until a consumer in this process had the message. ``reached_per_s``:
    the rate that the writers kept."""

    events: int
    reached_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are events/s. ``drain_per_s``: from the start of the relay's process to the last event; ``steady_per_s``:
    between 15 and 90 % of them, ``None`` where those came at once. ``removed``: rows deleted from the outbox."""

    plan: Plan
    append_per_s: float
    first_event_s: float
    drain_per_s: float
    steady_per_s: float | None
    latency: Latency
    relay_cpu_s: float
    removed: int
    database_settings: dict[str, str]
    broker_confirms: str
    broker_options: list[str]
    machine: dict[str, str]


def machine() -> dict[str, str]:
    """The machine this process runs on; database and broker may be elsewhere."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "relevo": __version__,
    }
