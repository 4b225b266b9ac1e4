"""What a move between the sources would do: the steps, in words, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from relevo.errors import ConfigError, SchemaError
from relevo.ops import moving_indexes as indexes
from relevo.ports.database import Database
from relevo.sources.wal.slots import publication_problem, room_problem, server_problem, slot_problem
from relevo.storage import grouping, moving, slotting, waling

SOURCES: Final = ("mark", "log", "wal")


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
    if target not in SOURCES or (target == "wal" and database.dialect != "postgresql"):
        raise ConfigError(
            f"tables cannot be moved to {target!r}: a move leads from 'mark' to 'log', or back, "
            "and on PostgreSQL to 'wal'"
        )
    stands = await database.run(moving.stands(), read_only=True)
    begun = await database.run(moving.begun(), read_only=True)
    if begun is not None and begun.target != target:
        raise ConfigError(
            f"a move from {begun.origin!r} to {begun.target!r} was begun and has not ended. Let it end: relevo source "
            f"move {begun.target}; or give it up: relevo jobs cancel {begun.job_id}"
        )
    rows, partitions = await database.run(moving.size(), read_only=True)
    relays = {each.name: each.lanes for each in await database.run(moving.relays(), read_only=True)}
    groups: list[str] = []
    if target != "log" and database.dialect == "postgresql":
        groups = await database.run(grouping.names(), read_only=True)
    if groups:
        raise ConfigError(
            f"the groups {', '.join(groups)} read this outbox themselves, which they can only as a log. Drop those "
            "that nobody uses any more: relevo groups drop NAME"
        )
    origin = begun.origin if begun is not None else stands.source
    steps: tuple[str, ...] = ()
    if stands.source != target:
        steps = (
            *(await _before(database, stands.source, target, rows, partitions)),
            f"have {len(relays)} relays let go of their lanes, when what is in flight has landed",
            *_closed(stands.source, target),
            f"change the source from {stands.source!r} to {target!r}; the relays go on with it",
        )
    if not steps and begun is None and stands.source != "wal" and await _left(database):
        origin = "wal"
        steps = _after(origin)
    elif steps or begun is not None:
        steps += _after(origin)
    return MovePlan(origin, target, rows, relays, begun is not None, steps)


async def _left(database: Database) -> bool:
    """Whether a slot with a position is there that is not read: of a move out of ``wal`` that was given up."""
    if database.dialect != "postgresql":
        return False
    name = await database.run(slotting.slot_name(), read_only=True)
    return await database.run(waling.stored(name), read_only=True) is not None


async def _before(database: Database, origin: str, target: str, rows: int, partitions: int) -> tuple[str, ...]:
    """What is done while relays read. Raises ``SchemaError`` where the server does not allow what is needed."""
    if "wal" in (origin, target):
        await _refuse(database, origin, target)
    if target == "wal":
        return (
            "make a publication and a replication slot, and wait for transactions that are open then. The relays' role "
            "needs the right to replicate",
        )
    where = f"on {partitions} partitions " if database.dialect == "postgresql" else ""
    index = f"build the index {indexes.INDEXES[target][0]} {where}while writers write"
    return (f"set the markers of what was handed over, of about {rows:,} rows", index) if target == "mark" else (index,)


async def _refuse(database: Database, origin: str, target: str) -> None:
    name = await database.run(slotting.slot_name(), read_only=True)
    server = await database.run(slotting.server(name), read_only=True)
    problem = server_problem(server)
    if problem is None and target == "wal":
        slot = await database.run(slotting.find(name), read_only=True)
        problem = room_problem(server) if slot is None else None
        if origin == "log" and not await database.run(moving.same_system(), read_only=True):
            problem = "these tables come from another cluster. Run first: relevo source move mark"
    elif problem is None:
        found = await database.run(slotting.find(name), read_only=True)
        stored = await database.run(waling.stored(name), read_only=True)
        problem = publication_problem(name, server) or slot_problem(name, server, found, stored, None)
    if problem is None and not server.may_alter:
        problem = (
            f"the publication {name} belongs to another role, and a move changes it. Run this as its owner, or as a "
            f'superuser run: alter publication {name} owner to "{server.role}"'
        )
    if problem is not None:
        raise SchemaError(f"{database.url}: {problem}. Nothing was changed")


def _closed(origin: str, target: str) -> tuple[str, ...]:
    if target == "wal":
        return ("hold what no relay has sent yet: it is sent before anything newer",)
    if origin == "wal":
        return (
            "read the log to its end for what no relay has sent yet. Events without a table are held, and "
            "appends of such events refuse from then on: give the applications an Outbox with a table before",
        )
    return ()


def _after(origin: str) -> tuple[str, ...]:
    if origin == "wal":
        return (
            "when transactions that are open then have ended, write events that they emitted without a table to the "
            "outbox, and drop the slot and the publication",
        )
    return (f"remove the index {indexes.INDEXES[origin][0]}",)
