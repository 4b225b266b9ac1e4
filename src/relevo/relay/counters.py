"""What a relay counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """What this process did since it started."""

    published: int = 0
    held: int = 0
    skipped: int = 0
    handed_back: int = 0
    pages: int = 0
