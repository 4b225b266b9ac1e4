"""What a consumer process knows about itself, from memory: for readiness probes and ``status``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """``live``: the loop runs. ``ready``: it takes messages. ``problems``: what is unavailable, by name."""

    live: bool
    ready: bool
    problems: Mapping[str, str] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
