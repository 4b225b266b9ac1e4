"""Groups of consumers that read the outbox themselves: which there are, what they keep, and forgetting one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from relevo.errors import ConfigError, RefusedError
from relevo.ops.status_report import ConsumerGroup
from relevo.ports.database import Database, Dialect
from relevo.script import Script
from relevo.storage import auditing, grouping
from relevo.storage.auditing import Act

CAP: Final = 10_000
"""Where counting what is before a group stops."""
UNUSED_S: Final = 3_600.0
"""A group without a member for so long is worth a warning, once something waits for it."""


async def listed(database: Database) -> list[ConsumerGroup]:
    """All groups, by name. Raises ``ConfigError`` on SQLite, whose outbox nobody reads so."""
    _refuse(database)
    return await database.run(gather(database.dialect), read_only=True)


async def drop(database: Database, name: str, *, actor: str, reason: str) -> ConsumerGroup:
    """Forget the group and its place, with an audit row; returns what it was. Retention waits for it no more; whoever
    joins by that name again is new. Raises ``RefusedError`` if there is none, or while one of its members lives."""
    _refuse(database)
    return await database.run(_drop(name, Act("groups.drop", actor, reason, {"group": name})))


def gather(dialect: Dialect) -> Script[list[ConsumerGroup]]:
    """For ``status`` too."""
    if dialect != "postgresql":
        return []
    return [_group(each) for each in (yield from grouping.listed(CAP))]


def warnings(groups: Sequence[ConsumerGroup]) -> list[str]:
    """What a person should look at."""
    return [
        f"nobody reads for the group {each.name} any more (for {each.moved_age_s or each.age_s:.0f} s), and no message "
        f"goes before it has: start its consumer, or, for good: relevo groups drop {each.name}"
        for each in groups
        if not each.members and each.behind and (each.moved_age_s or each.age_s) > UNUSED_S
    ]


def _drop(name: str, act: Act) -> Script[ConsumerGroup]:
    found = next((each for each in (yield from grouping.listed(CAP)) if each.name == name), None)
    if found is None:
        raise RefusedError(f"there is no group {name!r}: relevo groups list")
    if not (yield from grouping.drop(name)):
        raise RefusedError(
            f"a process of the group {name!r} lives. Stop it first; one that was killed counts until its lease is over"
        )
    yield from auditing.record(act, found.behind, detail={"high_water": found.high_water})
    return _group(found)


def _group(found: grouping.Group) -> ConsumerGroup:
    return ConsumerGroup(
        name=found.name,
        topics=list(found.topics),
        members=found.members,
        behind=min(found.behind, CAP),
        behind_capped=found.behind > CAP,
        oldest_age_s=found.oldest_s,
        age_s=found.age_s,
        moved_age_s=found.moved_age_s,
    )


def _refuse(database: Database) -> None:
    if database.dialect != "postgresql":
        raise ConfigError(f"{database.url}: only the outbox of a PostgreSQL database is read by groups")
