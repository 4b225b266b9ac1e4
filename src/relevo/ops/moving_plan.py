"""What a move between the sources would do: the steps, in words, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from relevo.errors import ConfigError
from relevo.ops import moving_indexes as indexes
from relevo.ports.database import Database
from relevo.storage import grouping, moving

SOURCES: Final = ("mark", "log")


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What ``move`` would do. ``rows``: of the outbox, about. ``relays``: those alive, with the lanes they own.
    ``begun``: an earlier run did not end, and is gone on with. No ``steps``: there is nothing to do."""

    origin: str
    target: str
    rows: int
    relays: Mapping[str, int]
    begun: bool
    steps: tuple[str, ...]


async def plan(database: Database, target: str) -> MovePlan:
    """Look, change nothing. Raises ``ConfigError`` for a target or origin that cannot be moved, ``SchemaError`` for
    tables that are missing or older than this version."""
    if target not in SOURCES:
        raise ConfigError(f"tables cannot be moved to {target!r}: a move leads from 'mark' to 'log', or back")
    stands = await database.run(moving.stands(), read_only=True)
    begun = await database.run(moving.begun(), read_only=True)
    if begun is not None and begun.target != target:
        raise ConfigError(
            f"a move from {begun.origin!r} to {begun.target!r} was begun and has not ended. Let it end: relevo source "
            f"move {begun.target}; or give it up: relevo jobs cancel {begun.job_id}"
        )
    rows, partitions = await database.run(moving.size(), read_only=True)
    relays = {each.name: each.lanes for each in await database.run(moving.relays(), read_only=True)}
    if stands.source not in SOURCES:
        raise ConfigError(f"these tables are read by {stands.source!r}: a move leads from 'mark' to 'log', or back")
    groups: list[str] = []
    if target == "mark" and database.dialect == "postgresql":
        groups = await database.run(grouping.names(), read_only=True)
    if groups:
        raise ConfigError(
            f"the groups {', '.join(groups)} read this outbox themselves, which they can only as a log. Drop those "
            "that nobody uses any more: relevo groups drop NAME"
        )
    steps: tuple[str, ...] = ()
    if stands.source != target:
        where = f"on {partitions} partitions " if database.dialect == "postgresql" else ""
        index = indexes.INDEXES[target][0]
        first = f"build the index {index} {where}while writers write"
        steps = (
            *(() if target == "mark" else (first,)),
            *((f"set the markers of what was handed over, of about {rows:,} rows", first) if target == "mark" else ()),
            f"have {len(relays)} relays let go of their lanes, when what is in flight has landed",
            f"change the source from {stands.source!r} to {target!r}; the relays go on with it",
        )
    origin = begun.origin if begun is not None else stands.source
    if steps or begun is not None:
        steps += (f"remove the index {indexes.INDEXES[other(target)][0]}",)
    return MovePlan(origin, target, rows, relays, begun is not None, steps)


def other(target: str) -> str:
    """Where a move to ``target`` comes from."""
    return "log" if target == "mark" else "mark"
