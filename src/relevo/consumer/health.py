"""What a consumer process knows about itself, from memory: for readiness probes and ``status``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relevo.runtime.vitals import Vital


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """``live``: the loop runs. ``ready``: it takes messages. ``problems``: what is unavailable, by name.
    ``ages``: of the last success of each kind of work, with its limit."""

    live: bool
    ready: bool
    problems: Mapping[str, str] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    ages: Mapping[str, Any] = field(default_factory=dict)


def vitals_of(lease_s: float) -> list[Vital]:
    """What a consumer has to succeed in: renewing its leases, hearing from the broker, taking from it, writing down
    what it took, settling. Each has a client-side bound within a lease."""
    return [
        Vital("renewal", "lease", lease_s),
        Vital("broker", "broker", lease_s),
        Vital("poll", "poll", lease_s),
        Vital("journal", "journal", lease_s),
        Vital("settle", "settle", lease_s),
    ]
