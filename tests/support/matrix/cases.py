"""Which rows the matrix has: the product of points, actions and stacks, and which of them `make test` runs."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from relevo._version import __version__
from relevo.runtime.probes import ACTIONS, KNOWN, Action, part_of

REPO = Path(__file__).resolve().parents[3]
EMBEDDED = "sqlite-embedded"
STACKS = (EMBEDDED, "postgres-kafka", "postgres-rabbitmq")
SHARD = 6
"""How many rows beside the kills on SQLite run in `make test`."""


@dataclass(frozen=True)
class Case:
    """One row: ``point`` of ``KNOWN``, what happens there, and where."""

    point: str
    action: Action
    stack: str

    def __str__(self) -> str:
        return f"{self.point}-{self.action}-{self.stack}"

    @property
    def part(self) -> str:
        return part_of(self.point)

    @property
    def not_applicable(self) -> str | None:
        """Why this row cannot be, in words; ``None`` if it can."""
        if self.point not in called():
            return f"{self.point} is in probes.KNOWN, and nothing in src/ calls probe({self.point!r}) yet"
        if self.point == "purge.partition" and self.stack == EMBEDDED:
            return "SQLite has no partitions"
        if self.action == "cut" and self.stack == EMBEDDED:
            return "SQLite and the embedded broker are files: there is no connection to cut"
        if self.action == "freeze" and self.stack == EMBEDDED:
            return "a process frozen inside a write transaction blocks an SQLite file: there is no server to end it"
        return None


@cache
def called() -> frozenset[str]:
    """The points that the source passes."""
    sources = (path.read_text() for path in (REPO / "src").rglob("*.py"))
    return frozenset(name for source in sources for name in re.findall(r'\bprobe\("([a-z_.]+)"\)', source))


OF_WAL = ("source.held", "source.tidied")
"""Only a move into or out of `wal` passes them: ``tests/faults/test_crash_matrix_wal.py``."""


def product(without: Sequence[str] = OF_WAL) -> list[Case]:
    points = [point for point in KNOWN if point not in without]
    return [Case(point, action, stack) for stack in STACKS for point in points for action in ACTIONS]


def kills() -> list[Case]:
    """Every point once."""
    return [Case(point, "kill", EMBEDDED) for point in KNOWN if point not in OF_WAL]


def shard(commit: str | None = None) -> list[Case]:
    """A few rows of the rest, others for every commit, so that all have their turn."""
    seed = commit or _commit()
    rest = [case for case in product() if case not in kills() and case.not_applicable is None]
    return sorted(rest, key=lambda case: hashlib.sha256(f"{seed} {case}".encode()).digest())[:SHARD]


def _commit() -> str:
    """Without git the version: stable too."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, timeout=20)
    except OSError:
        return __version__
    return done.stdout.strip() or __version__
