"""From the lease to a running stream: look at server, publication, slot and position, then start; or say why not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

from relevo.bounds import answer_s
from relevo.catalog import Catalog
from relevo.clients.replication import ANSWER_MAX_S, ReplicationConnection, ReplicationError
from relevo.errors import LostOwnershipError, SchemaError, UnreachableError
from relevo.ports.database import Database
from relevo.script import Script
from relevo.settings import DatabaseSettings
from relevo.sources.wal.lease import ReaderLease
from relevo.sources.wal.protocol import DecodeError
from relevo.sources.wal.slots import FALLBACK, publication_problem, server_problem, slot_problem
from relevo.sources.wal.stream import Stream
from relevo.storage import emitting, slotting, waling
from relevo.storage.waling import Position, lsn_text

log = logging.getLogger("relevo.relay")

IN_USE_S = 10.0
"""How long the stream of a predecessor that stands still may take to end."""
_IN_USE = "55006"
_NOT_PERMITTED = "42501"
_MISSING = "42704"  # also: the publication was not there when the WAL was written that is read now
_ANEW = (_MISSING, "55000")  # no such slot or publication; the slot was invalidated


@dataclass(frozen=True, slots=True)
class Connected:
    """A stream that runs, and where it began."""

    stream: Stream
    fileno: int
    start: Position
    close: Callable[[], None]


Connect = Callable[[int], Awaitable[Connected]]
"""With the lease's epoch, to a running stream. Raises ``LostOwnershipError`` if the lease is somebody else's by now."""


def connector(database: Database, settings: DatabaseSettings, lease: ReaderLease) -> Connect:
    """What ``WalSource`` needs to begin."""
    catalog = Catalog(database.dialect, settings.schema, settings.prefix)

    async def connect(epoch: int) -> Connected:
        connection = await connected(settings, answer_s=answer_s(lease.lease_s))
        try:
            return await _start(database, connection, catalog, lease, epoch)
        except BaseException:
            connection.close()
            raise

    return connect


@contextlib.contextmanager
def explained(slot: str) -> Iterator[None]:
    """Around reading the stream of ``slot``: what can go wrong, in plain words."""
    try:
        yield
    except ReplicationError as error:
        if error.sqlstate == _MISSING:
            raise SchemaError(f"the server ended the stream of {slot}: {error}. {FALLBACK}") from error
        raise UnreachableError(f"the stream of {slot} ended: {error} ({error.sqlstate})") from error
    except DecodeError as error:
        raise SchemaError(
            f"the stream of the slot {slot} cannot be read: {error}. Nothing was moved past. "
            "Give table and publication their shape again, then run: relevo slot recover"
        ) from error


async def connected(settings: DatabaseSettings, *, answer_s: float = ANSWER_MAX_S) -> ReplicationConnection:
    """A connection for a stream. ``answer_s``: the bound of a round trip.

    Raises ``SchemaError`` where the role lacks the right."""
    try:
        return await ReplicationConnection.connect(settings, answer_s=answer_s)
    except ReplicationError as error:
        raise SchemaError(
            f"this role may not replicate ({error.sqlstate}: {error}). As a superuser run: alter role … replication"
        ) from error


async def _start(
    database: Database, connection: ReplicationConnection, catalog: Catalog, lease: ReaderLease, epoch: int
) -> Connected:
    name = lease.slot
    system = await connection.identify()
    server = await database.run(slotting.server(name), read_only=True)
    slot = await database.run(slotting.find(name), read_only=True)
    stored = await database.run(waling.stored(name), read_only=True)
    problem = (
        server_problem(server) or publication_problem(name, server) or slot_problem(name, server, slot, stored, system)
    )
    if problem is not None:
        raise SchemaError(f"{database.url}: {problem}")
    assert stored is not None and server.table is not None
    if stored.epoch != epoch:
        raise LostOwnershipError(f"another relay reads the slot {name}")
    if stored.timeline != system[1]:
        log.warning(
            "a standby was promoted (timeline %d, now %d); slot and position went along, delivery goes on at %s",
            *(stored.timeline, system[1], stored.position),
        )
        await database.run(waling.adopt_timeline(name, lease.holder, epoch, system[1]))
    end = partial(slotting.terminate_former, name, lease.holder, epoch)
    await start_replication(database, connection, name, stored.position, end)
    stream = Stream(connection, stored.position, server.table, emitting.channel(catalog))
    log.info("reading the slot %s from %s", name, stored.position)
    return Connected(stream, connection.fileno, stored.position, connection.close)


async def start_replication(
    database: Database,
    connection: ReplicationConnection,
    name: str,
    start: Position,
    end_former: Callable[[], Script[None]],
) -> None:
    """Stream the slot ``name`` from ``start``. Who still reads it stands still: ``end_former`` ends its connection."""
    deadline = time.monotonic() + IN_USE_S
    while True:
        try:
            return await connection.start(name, lsn_text(start.lsn), name)
        except ReplicationError as error:
            if error.sqlstate in _ANEW or error.sqlstate == _NOT_PERMITTED:
                raise SchemaError(f"the server refuses to stream {name}: {error} ({error.sqlstate})") from error
            if error.sqlstate != _IN_USE or time.monotonic() >= deadline:
                raise UnreachableError(f"the slot {name} cannot be read now: {error} ({error.sqlstate})") from error
        # If the lease is ours, whoever is still connected stands still, or is about to go.
        try:
            await database.run(end_former())
        except Exception as error:  # noqa: BLE001  not our role's process: wait for it
            log.debug("the former reader's connection could not be ended: %s", error)
        await asyncio.sleep(0.1)
