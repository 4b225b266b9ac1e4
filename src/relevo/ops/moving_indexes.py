"""The index of a source, built and removed while writers write.

PostgreSQL builds an index on a partitioned table only with writers locked out. So it is built on each partition
``concurrently``, and then on the table, which finds what it needs. Both acts on the table ask for their lock shortly,
again and again: whoever waits for a lock makes every writer wait behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from relevo.catalog import Catalog
from relevo.clients.texts import DatabaseError, TextSession, text_session
from relevo.errors import CancelledJobError
from relevo.ops.migrate import catalog_of
from relevo.runtime.probes import probe
from relevo.settings import Settings

INDEXES: Final = {"mark": ("outbox_unsettled", "(seq) where settled_at is null"), "log": ("outbox_tx", "(tx, seq)")}
"""By source; what ``source_mark.sql`` and ``source_log.sql`` build in a new installation."""
LOCK_MS: Final = 200
BETWEEN_S: Final = 1.0

_LOCK_NOT_AVAILABLE = "55P03"

Say = Callable[[str], None]
"""Tells people what goes on; nothing, if the text is empty. Raises when the work is not wanted any more."""


Act = Callable[[TextSession, Catalog, str, Say], None]
"""``build`` or ``remove``."""


async def in_thread(
    act: Act, settings: Settings, source: str, report: Say, keep: Callable[[], Awaitable[None]], every_s: float
) -> None:
    """Do ``act`` on a connection of its own, in a thread: it may take long, and holds no transaction. ``keep`` is
    called every ``every_s`` seconds. Whoever interrupts it waits for the partition that is under way."""
    wanted = True

    def say(text: str) -> None:
        if not wanted:
            raise CancelledJobError("interrupted: the same command goes on")
        if text:
            report(text)

    def work() -> None:
        with text_session(settings.database) as session:
            act(session, catalog_of(settings), source, say)

    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        while not (await asyncio.wait((working,), timeout=every_s))[0]:
            await keep()
    finally:
        wanted = False
    await working


def build(session: TextSession, catalog: Catalog, source: str, say: Say) -> None:
    """Build the index of ``source``, if it is not there. A run that was cut off is gone on with."""
    if catalog.dialect == "sqlite":
        if source == "mark":
            name, columns = INDEXES[source]
            session.execute(catalog.fill(f"create index if not exists {{name:{name}}} on {{outbox}} {columns};"))
            probe("source.prepared")
        return
    name, columns = INDEXES[source]
    if _state(session, catalog, f"{catalog.prefix}{name}") == "valid":
        return
    for partition, index in _partitions(session, catalog, name):
        state = _state(session, catalog, index)
        if state == "valid":
            continue
        if state == "invalid":  # of a run that was cut off
            session.execute(f"drop index concurrently {_qualified(catalog, index)};")
        say(f"building an index on {partition}, while writers write")
        session.execute(f'create index concurrently "{index}" on {partition} {columns};')
        probe("source.prepared")
    _locked(session, catalog.fill(f"create index if not exists {{name:{name}}} on {{outbox}} {columns};"), "index", say)
    probe("source.prepared")


def remove(session: TextSession, catalog: Catalog, source: str, say: Say) -> None:
    """Remove the index of ``source``: writers need not pay for it any more."""
    name = INDEXES[source][0]
    if catalog.dialect == "sqlite":
        session.execute(catalog.fill(f"drop index if exists {{{name}}};"))
    elif _state(session, catalog, f"{catalog.prefix}{name}") != "missing":
        _locked(session, catalog.fill(f"drop index if exists {{{name}}};"), "index", say)


def _partitions(session: TextSession, catalog: Catalog, name: str) -> Iterator[tuple[str, str]]:
    rows = session.execute(
        catalog.fill("select partition::text, name from {outbox_partitions}() order by from_seq desc;")
    )
    for partition, bare in rows:
        yield str(partition), f"{bare}_{name.removeprefix('outbox_')}"


def _state(session: TextSession, catalog: Catalog, index: str) -> str:
    rows = session.execute(
        "select i.indisvalid from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid "
        f"where c.oid = to_regclass('{_qualified(catalog, index)}');"
    )
    return "missing" if not rows else "valid" if rows[0][0] else "invalid"


def _qualified(catalog: Catalog, index: str) -> str:
    return f'"{catalog.schema}"."{index}"' if catalog.schema else f'"{index}"'


def _locked(session: TextSession, text: str, what: str, say: Say) -> None:
    told = False
    while True:
        try:
            with session.transaction():
                session.execute(f"set local lock_timeout = {LOCK_MS}; {text}")
            return
        except DatabaseError as error:
            if error.code != _LOCK_NOT_AVAILABLE:
                raise
        say("" if told else f"waiting for a moment without an open transaction in the outbox, to finish the {what}")
        told = True
        time.sleep(BETWEEN_S)
