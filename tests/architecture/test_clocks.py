"""The wall clock of a process decides nothing: due times, leases and order are the database's."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "relevo"

ALLOWED = {
    "brokers/rabbitmq/framing.py": "the time of a stranger's message that has none",
    "cli/replay.py": 'what a person means by "36h ago", shown back as a moment before anything runs',
    "effects/signing.py": "a receiver judges how old a signature is",
    "effects/webhook.py": "the time stamp that is signed; a Retry-After whose sender does not tell its own time",
    "ids.py": "inside an id, which is never used for order",
    "outbox/building.py": "the time of a message that is only shown to the test or tap that captures it",
    "runtime/clock.py": "since when, for people",
    "sources/wal/stream.py": "the time told to the server in a status update; the time of a message without a row",
}
"""File to reason."""

WALL = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("time", "gmtime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}


def reads_of(tree: ast.AST) -> set[tuple[str, str]]:
    """Which of ``WALL`` it names, however it is called, and names imported from ``time``."""
    found = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {("time", name.name) for name in node.names}
    return found & WALL


def test_who_reads_the_wall_clock() -> None:
    """FAILURES row 43: nobody but these, and for nothing else."""
    found = {
        str(file.relative_to(SOURCE)): names
        for file in sorted(SOURCE.rglob("*.py"))
        if (names := reads_of(ast.parse(file.read_text("utf-8"))))
    }
    unknown = {name for name in found if not name.startswith("testing/")} - ALLOWED.keys()
    assert not unknown, {name: found[name] for name in unknown}
    stale = {name for name in ALLOWED if (SOURCE / name).exists()} - found.keys()
    assert not stale


def test_it_would_be_seen() -> None:
    assert reads_of(ast.parse("import time\nx = [time.time]")) == {("time", "time")}
    assert reads_of(ast.parse("from time import time_ns as n")) == {("time", "time_ns")}
    assert reads_of(ast.parse("import time\ntime.monotonic()")) == set()
