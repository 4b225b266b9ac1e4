"""``relevo slot`` as functions: make, look at, recover and drop what the source ``wal`` needs on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from importlib import resources
from typing import TypeVar

from relevo.catalog import Catalog
from relevo.clients import database_for, dialect_of
from relevo.clients.replication import ReplicationConnection, ReplicationError
from relevo.clients.texts import text_session
from relevo.errors import CheckFailedError, ConfigError, SchemaError
from relevo.ports.database import Database
from relevo.script import Script, after
from relevo.settings import Settings
from relevo.sources.wal.slots import publication_problem, room_problem, server_problem, slot_problem
from relevo.storage import moving_wal, slotting, waling
from relevo.storage.slotting import Listed
from relevo.storage.waling import Position, lsn_text

T = TypeVar("T")
Fence = Callable[[], Script[None]]
"""First in each transaction that drops something: raises where it is somebody else's by now."""

BATCH = 1000
"""Rows per transaction when the table is read."""
IDLE_S = 10.0
"""How long a process that stands still in the middle may keep what ``Fence`` locks."""


@dataclass(frozen=True, slots=True)
class SlotReport:
    """``made``: by this call. ``copied``: messages taken over from the table, to be sent before anything newer."""

    name: str
    made: bool
    position: Position
    copied: int = 0

    def __str__(self) -> str:
        how = "made" if self.made else "there"
        more = f"; {self.copied:,} messages of the table will be sent first" if self.copied else ""
        return f"slot {self.name} is {how}, read up to {lsn_text(self.position.lsn)}{more}"


def create(settings: Settings) -> SlotReport:
    """Make publication, slot and position, whichever is missing. Blocks, also while transactions run that were there
    before the slot. What stands unsettled in the table is taken over. Raises ``SchemaError`` in plain words."""
    return _blocking(settings, lambda database: _create(database, settings))


def recover(settings: Settings) -> SlotReport:
    """Drop the slot, whatever state it is in, make a new one, and take over from the table what is not known to be
    settled. Can be run again when it was interrupted."""

    async def anew(database: Database) -> SlotReport:
        name = await database.run(slotting.slot_name(), read_only=True)
        await _refuse(database, name)
        await _drop(database, name, _freely)
        return await _create(database, settings)

    return _blocking(settings, anew)


def drop(settings: Settings) -> bool:
    """Drop slot, position and publication; whether there was a slot. A running reader is ended."""
    return _blocking(settings, remove)


def check(settings: Settings) -> SlotReport:
    """What a relay would find at its start; raises ``CheckFailedError`` with what is wrong and what to do."""

    async def look(database: Database) -> SlotReport:
        name = await database.run(slotting.slot_name(), read_only=True)
        server = await database.run(slotting.server(name), read_only=True)
        slot = await database.run(slotting.find(name), read_only=True)
        stored = await database.run(waling.stored(name), read_only=True)
        problem = server_problem(server)
        system = await _identify(settings) if problem is None else None
        problem = problem or publication_problem(name, server) or slot_problem(name, server, slot, stored, system)
        if problem is not None:
            raise CheckFailedError(f"{database.url}: {problem}")
        assert stored is not None
        return SlotReport(name, False, stored.position)

    return _blocking(settings, look)


def listing(settings: Settings) -> tuple[str, list[Listed]]:
    """The name of our slot, and every slot of this server that has our plugin."""

    async def look(database: Database) -> tuple[str, list[Listed]]:
        name = await database.run(slotting.slot_name(), read_only=True)
        return name, await database.run(slotting.listing(), read_only=True)

    return _blocking(settings, look)


def _freely() -> Script[None]:
    yield from ()


async def make_new(database: Database, settings: Settings, fence: Fence = _freely) -> tuple[int, tuple[str, int]]:
    """Publication and slot, whatever was there before, but no position yet, and nobody can append without a table.
    Returns where the slot begins, and system identifier and timeline. Waits for transactions that run now. Raises
    ``SchemaError`` in plain words, and what ``fence`` does."""
    name = await database.run(slotting.slot_name(), read_only=True)
    await remove(database, fence)
    server = await _refuse(database, name)
    if (problem := room_problem(server)) is not None:
        raise SchemaError(f"{database.url}: {problem}")
    system = await _identify(settings)
    await asyncio.to_thread(_publish, settings)
    await _run(database, fence, moving_wal.publish(moving_wal.PREPARED))
    await database.run(slotting.create(name, server.version), read_only=True)
    slot = await database.run(slotting.find(name), read_only=True)
    if slot is None or slot.confirmed is None:
        raise SchemaError(f"{database.url}: the slot {name} is being made or dropped by somebody else. Try again")
    return slot.confirmed, system


async def remove(database: Database, fence: Fence = _freely) -> bool:
    """Drop slot, position and publication, whichever is there; whether there was a slot. A running reader is ended."""
    name = await database.run(slotting.slot_name(), read_only=True)
    gone = await _drop(database, name, fence)
    await _run(database, fence, slotting.drop_publication())
    return gone


def _publish(settings: Settings) -> None:
    text = (resources.files("relevo.storage") / "postgres" / "migrations" / "source_wal.sql").read_text("utf-8")
    catalog = Catalog("postgresql", settings.database.schema, settings.database.prefix)
    with text_session(settings.database) as session, session.transaction():
        session.execute(catalog.fill(text))


async def _create(database: Database, settings: Settings) -> SlotReport:
    name = await database.run(slotting.slot_name(), read_only=True)
    server = await _refuse(database, name)
    slot = await database.run(slotting.find(name), read_only=True)
    stored = await database.run(waling.stored(name), read_only=True)
    if slot is None or stored is None:
        _publish(settings)
        server = await database.run(slotting.server(name), read_only=True)
    problem = publication_problem(name, server)
    system = await _identify(settings)
    if problem is None and slot is not None and stored is not None:
        problem = slot_problem(name, server, slot, stored, system)
        if problem is None:
            return SlotReport(name, False, stored.position)
    if problem is None and slot is None:
        problem = room_problem(server) or (slot_problem(name, server, None, stored, system) if stored else None)
    if problem is not None:
        raise SchemaError(f"{database.url}: {problem}")
    if slot is None:
        await database.run(slotting.create(name, server.version), read_only=True)
        slot = await database.run(slotting.find(name), read_only=True)
    if slot is None or slot.confirmed is None:
        raise SchemaError(f"{database.url}: the slot {name} is being made or dropped by somebody else. Try again")
    copied = await _take_over(database)
    # The row comes last: with it readers may begin. A run that was cut off before it is simply run again.
    await database.run(slotting.begin(name, system, slot.confirmed))
    return SlotReport(name, True, Position(slot.confirmed), copied)


async def _take_over(database: Database) -> int:
    after, copied, count = -(2**63), 0, BATCH
    while count == BATCH:
        after, count = await database.run(slotting.recover(after, BATCH))
        copied += count
    return copied


async def _refuse(database: Database, name: str) -> slotting.Server:
    server = await database.run(slotting.server(name), read_only=True)
    problem = server_problem(server)
    if problem is None and server.table is None:
        problem = "the outbox table is missing. Run: relevo migrate"
    if problem is not None:
        raise SchemaError(f"{database.url}: {problem}")
    return server


async def _drop(database: Database, name: str, fence: Fence) -> bool:
    """The position first: whoever reads the slot cannot go on without it; end it rather than wait for it to notice."""
    await _run(database, fence, slotting.forget(name))
    for _ in range(100):
        slot = await database.run(slotting.find(name), read_only=True)
        if slot is None or slot.active_pid is None:
            break
        await _run(database, fence, slotting.terminate(name))
        await asyncio.sleep(0.1)
    return await _run(database, fence, slotting.drop(name))


async def _run(database: Database, fence: Fence, act: Script[T]) -> T:
    return await database.run(after(fence(), act), idle_timeout_s=IDLE_S)


async def _identify(settings: Settings) -> tuple[str, int]:
    """(system identifier, timeline), over a replication connection: so that is tried as well."""
    try:
        connection = await ReplicationConnection.connect(settings.database)
    except ReplicationError as error:
        raise SchemaError(
            f"a replication connection is refused ({error.sqlstate}: {error}). The role needs the REPLICATION right"
        ) from error
    try:
        return await connection.identify()
    finally:
        connection.finish()


def _blocking(settings: Settings, act: Callable[[Database], Awaitable[T]]) -> T:
    """Run ``act`` on a connection of its own, in a thread, so that it also works below a running loop."""
    if dialect_of(settings.database.url) != "postgresql":
        raise ConfigError("replication slots are PostgreSQL's: database.url names another database")

    async def run() -> T:
        async with aclosing(database_for(settings.database, connections_max=2)) as database:
            return await act(database)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result()
