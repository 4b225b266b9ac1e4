"""Scripts about who is running: register, leave, and what ``status`` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from relevo.script import Script, Statement

Role = Literal["relay", "consumer"]


class Process(NamedTuple):
    """One live process. ``age_s``: seconds since it started, by the database's clock."""

    process_id: UUID
    role: str
    name: str
    host: str
    pid: int
    version: str
    topics: tuple[str, ...]
    detail: Mapping[str, Any]
    age_s: float

    @property
    def health(self) -> dict[str, Any]:
        """``problems`` and ``ages``, as its readiness had them when it last renewed this row."""
        return {name: dict(self.detail.get(name) or {}) for name in ("problems", "ages")}

    @property
    def reading(self) -> dict[str, Any]:
        """Why a consumer has nothing to read from, and its broker's warnings."""
        return {"waits_for": self.detail.get("waits_for"), "notices": list(self.detail.get("notices") or [])}


def register(
    process_id: UUID,
    role: Role,
    name: str,
    *,
    host: str,
    pid: int,
    version: str,
    topics: Sequence[str],
    detail: Mapping[str, Any],
    lease_s: float,
) -> Script[None]:
    """Write or renew this process's row; it expires ``lease_s`` seconds from now by the database's clock."""
    yield Statement(
        "process.register",
        {
            "process_id": str(process_id),
            "role": role,
            "name": name,
            "host": host,
            "pid": pid,
            "version": version,
            "topics": list(topics),
            "detail": json.dumps(dict(detail)),
            "lease_s": lease_s,
        },
    )


def leave(process_id: UUID) -> Script[None]:
    """Remove this process's row at once, so that others need not wait for it to expire."""
    yield Statement("process.leave", {"process_id": str(process_id)})


def forget_dead() -> Script[None]:
    """Remove the rows of processes that have been gone for an hour without a word."""
    yield Statement("process.forget_dead")


def live(role: Role | None = None) -> Script[list[Process]]:
    """The processes whose rows have not expired, by role, name and start."""
    rows = yield Statement("process.live", {"role": role})
    return [
        Process(
            UUID(row[0]),
            row[1],
            row[2],
            row[3],
            row[4],
            row[5],
            tuple(json.loads(row[6]) if isinstance(row[6], str) else row[6]),
            json.loads(row[7] or "{}"),
            float(row[8]),
        )
        for row in rows
    ]


def command_conflicts(processes: Sequence[Process]) -> list[str]:
    """Warnings for ``status``: live consumers of different names with a handler for the same command on one topic. A
    start is refused then; one that is seen here began before the other could know, or waits for its lease to end."""
    takers: dict[tuple[str, str], set[str]] = {}
    for process in processes:
        for command in process.detail.get("commands", ()) if process.role == "consumer" else ():
            for topic in process.topics:
                takers.setdefault((command, topic), set()).add(process.name)
    return [
        f"the command {command!r} on {topic!r} is handled by {' and '.join(map(repr, sorted(names)))}: each obeys it"
        for (command, topic), names in sorted(takers.items())
        if len(names) > 1
    ]


def topic_conflicts(processes: Sequence[Process]) -> list[str]:
    """Warnings for ``status``: live consumers of one name that read different topics.

    Normal for the minutes of a rolling deploy; if it stays, one of them never sees some of its topics.
    """
    lists: dict[str, set[tuple[str, ...]]] = {}
    for process in processes:
        if process.role == "consumer":
            lists.setdefault(process.name, set()).add(tuple(sorted(process.topics)))
    return [
        f"consumer {name!r} runs with different topic lists: "
        + " and ".join(sorted("[" + ", ".join(topics) + "]" for topics in found))
        for name, found in sorted(lists.items())
        if len(found) > 1
    ]
