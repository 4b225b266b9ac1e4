"""Scripts of ``relevo bench``: the server's settings, and the removal of what it wrote."""

from __future__ import annotations

from relevo.ports.database import Dialect
from relevo.script import Script, Statement

BATCH = 5000
"""Rows removed in one transaction."""


def facts() -> Script[dict[str, str]]:
    """Settings of the database that decide what a commit costs."""
    rows = yield Statement("bench.facts")
    return {str(name): str(value) for name, value in rows}


def newest() -> Script[int]:
    """The largest ``seq`` that can be seen."""
    rows = yield Statement("bench.newest")
    return int(rows[0][0])


def remove(dialect: Dialect, topic: str, since: int) -> Script[int]:
    """Delete one batch of messages of ``topic`` with a ``seq`` above ``since``; how many there were."""
    rows = yield Statement("bench.remove", {"topic": topic, "since": since, "limit": BATCH})
    return len(rows) if dialect == "sqlite" else int(rows[0][0])
