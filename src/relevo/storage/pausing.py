"""Pauses: what people stopped, who and why; scripts, and the answer to "does this stop me?" from memory.

Every process reads the few rows about once a second; a message costs a look into a set. So a pause and a resume are
honoured within about a second, and what was under way is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from relevo.script import Script, Statement
from relevo.storage import auditing
from relevo.storage.auditing import Act

PauseKind = Literal["destination", "topic", "consumer", "lane", "key"]
KINDS: tuple[PauseKind, ...] = get_args(PauseKind)

LOOK_S = 1.0
"""How often a process looks at the pauses."""
REASON = "paused"
"""The ``reason`` of a key that is held because somebody paused it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is paused. ``destination``: relays send nothing to that topic. ``topic``: that, and no consumer handles it.
    ``key``: of ``topic``, at one ``consumer`` or, where that is empty, on the relay's side."""

    kind: PauseKind
    name: str
    topic: str = ""
    consumer: str = ""
    lane: int | None = None
    key: bytes | None = None

    def params(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "topic": self.topic, "consumer": self.consumer}


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause. ``age_s``: since when, in seconds by the database's clock."""

    target: Target
    who: str
    why: str
    since: datetime
    age_s: float


@dataclass(frozen=True, slots=True)
class Pauses:
    """All pauses at one moment, ready to look into."""

    all: tuple[Pause, ...] = ()
    destinations: frozenset[str] = field(default=frozenset(), init=False)
    """Topics no relay sends to."""
    topics: frozenset[str] = field(default=frozenset(), init=False)
    """Topics no consumer handles."""
    consumers: frozenset[str] = field(default=frozenset(), init=False)
    lanes: frozenset[int] = field(default=frozenset(), init=False)
    keys: frozenset[tuple[str, str, bytes]] = field(default=frozenset(), init=False)
    """(consumer or '', topic, key)."""

    def __post_init__(self) -> None:
        targets = [pause.target for pause in self.all]
        both = {target.topic for target in targets if target.kind == "topic"}
        values: dict[str, frozenset[Any]] = {
            "destinations": frozenset(both | {target.topic for target in targets if target.kind == "destination"}),
            "topics": frozenset(both),
            "consumers": frozenset(target.consumer for target in targets if target.kind == "consumer"),
            "lanes": frozenset(target.lane for target in targets if target.kind == "lane"),
            "keys": frozenset((t.consumer, t.topic, t.key) for t in targets if t.kind == "key"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def stops(self, consumer: str, topic: str, key: bytes) -> bool:
        """Whether ``consumer`` must not handle messages of this key."""
        return topic in self.topics or (bool(self.keys) and (consumer, topic, key) in self.keys)

    def snapshot(self) -> list[dict[str, Any]]:
        """For ``/status``."""
        return [
            {
                "kind": pause.target.kind,
                "name": pause.target.name,
                "topic": pause.target.topic,
                "consumer": pause.target.consumer,
                "who": pause.who,
                "why": pause.why,
                "since": pause.since.isoformat(timespec="milliseconds"),
            }
            for pause in self.all
        ]


NONE = Pauses()


def load() -> Script[Pauses]:
    """Everything that is paused."""
    rows = yield Statement("pause.all")
    return Pauses(tuple(_pause(row) for row in rows))


def add(target: Target, who: str, why: str) -> Script[bool]:
    """Pause, with its audit row; false if it is paused already (who, why and since stay as they are)."""
    rows = yield Statement(
        "pause.add", {**target.params(), "lane": target.lane, "key": target.key, "who": who, "why": why}
    )
    if rows:
        yield from auditing.record(_act("pause", target, who, why), 0)
    return bool(rows)


def remove(target: Target, who: str, why: str) -> Script[bool]:
    """Resume, with its audit row; false if it was not paused."""
    rows = yield Statement("pause.remove", target.params())
    if rows:
        yield from auditing.record(_act("resume", target, who, why), 0)
    return bool(rows)


def _act(verb: str, target: Target, who: str, why: str) -> Act:
    chosen = {name: value for name, value in target.params().items() if value and name != "kind"}
    return Act(f"{target.kind}.{verb}", who, why, chosen)


def _pause(row: Sequence[Any]) -> Pause:
    kind, name, topic, consumer, lane, key, who, why, since, age_s = row
    target = Target(kind, name, topic, consumer, lane, None if key is None else bytes(key))
    return Pause(target, who, why, datetime.fromtimestamp(float(since), UTC), float(age_s))
