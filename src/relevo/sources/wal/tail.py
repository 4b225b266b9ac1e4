"""The stream from a position up to now, once, while no relay reads: for a move between sources."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from relevo.catalog import Catalog
from relevo.clients.replication import readable
from relevo.errors import SchemaError, UnreachableError
from relevo.ports.database import Database
from relevo.script import Script
from relevo.settings import DatabaseSettings
from relevo.sources.wal.connecting import connected, explained, start_replication
from relevo.sources.wal.slots import server_problem, slot_problem
from relevo.sources.wal.stream import Chunk, Stream
from relevo.storage import emitting, moving_wal, slotting
from relevo.storage.waling import Position, Stored

MESSAGES = 1_000
BYTES = 8_000_000
ASK_S = 0.2
FLUSH_S = 1.0
SILENCE_S = 60.0
"""How long the server may be silent, though asked."""

Take = Callable[[Chunk, Position], Awaitable[None]]
"""With what was read, and the position after it."""


async def read_tail(
    database: Database,
    settings: DatabaseSettings,
    slot: str,
    stored: Stored,
    take: Take,
    keep: Callable[[], Awaitable[None]],
    end_former: Callable[[], Script[None]],
    *,
    xids: dict[int, int] | None = None,
) -> int:
    """Hand everything behind the position ``stored`` that had committed when this was called to ``take``, with the
    position after it.

    Returns the LSN before which every transaction that committed was read. The slot is told nothing: it can be read
    again. ``keep`` is called all the time; ``end_former`` ends the connection of who still reads the slot. Raises
    ``SchemaError`` or ``UnreachableError`` as the start of a relay does: so also where the slot would not send all.
    """
    catalog = Catalog(database.dialect, settings.schema, settings.prefix)
    start = stored.position
    await database.run(moving_wal.flush())
    until = await database.run(moving_wal.flushed(), read_only=True)
    connection = await connected(settings)
    try:
        system = await connection.identify()
        server = await database.run(slotting.server(slot), read_only=True)
        found = await database.run(slotting.find(slot), read_only=True)
        problem = server_problem(server) or slot_problem(slot, server, found, stored, system)
        if problem is not None:
            raise SchemaError(f"{database.url}: {problem}")
        if server.table is None:
            raise SchemaError()
        await start_replication(database, connection, slot, start, end_former)
        stream = Stream(connection, start, server.table, emitting.channel(catalog), xids=xids)
        flush_at = time.monotonic() + FLUSH_S
        while True:
            await keep()
            with explained(slot):
                chunk = stream.read(MESSAGES, BYTES)
            if chunk.messages:
                await take(chunk, stream.after(chunk))
            if stream.between and stream.reached >= until:
                return stream.reached  # more may come all the time
            if chunk.messages or chunk.more:
                continue
            if stream.asked * ASK_S > SILENCE_S:
                raise UnreachableError(f"the server has not been heard on the stream of {slot} for {SILENCE_S:g} s")
            stream.confirm(start.lsn, reply=True)
            if time.monotonic() > flush_at:  # whatever the server meant by its number: a commit is beyond it
                await database.run(moving_wal.flush())
                flush_at = time.monotonic() + FLUSH_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await readable(connection.fileno)
    finally:
        connection.close()
