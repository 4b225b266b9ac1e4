"""Readiness by age of success: how long each kind of work may go without one while there is something to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from relevo.runtime.pulse import Pulse


class Vital(NamedTuple):
    """``name``: what a person reads. ``pulse``: what the loop says to its ``Pulse``. ``limit_s``: how long it may go
    without a success while there is something to do."""

    name: str
    pulse: str
    limit_s: float


class Vitals:
    """Of one process, from memory. What hangs without an error shows here, and nowhere else."""

    def __init__(self, pulse: Pulse, vitals: Iterable[Vital]) -> None:
        self._pulse = pulse
        self._vitals = tuple(vitals)

    def problems(self) -> dict[str, str]:
        """By name: what had no success for longer than its limit."""
        found = {}
        for vital in self._vitals:
            waits_s = self._pulse.waits_s(vital.pulse)
            if waits_s is not None and waits_s > vital.limit_s:
                since = "no success" if self._pulse.age_s(vital.pulse) is not None else "no success yet"
                found[vital.name] = f"{since} for {waits_s:.0f} s (limit {vital.limit_s:.0f} s)"
        return found

    def ages(self) -> dict[str, Mapping[str, Any]]:
        """By name: ``age_s`` since the last success (``None``: never), ``waiting_s`` for the next (``None``: there is
        nothing to do), and the limit of ``waiting_s``."""
        return {
            vital.name: {
                "age_s": _rounded(self._pulse.age_s(vital.pulse)),
                "waiting_s": _rounded(self._pulse.waits_s(vital.pulse)),
                "limit_s": round(vital.limit_s, 3),
            }
            for vital in self._vitals
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
