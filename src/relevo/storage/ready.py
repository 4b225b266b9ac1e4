"""Are the tables there, and are they ours to use? Asked by relay and consumer at the start."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from relevo.catalog import Catalog
from relevo.errors import RelevoError, SchemaError, UnreachableError
from relevo.ports.database import Database
from relevo.script import Row, Script, Statement
from relevo.settings import DatabaseSettings, Settings
from relevo.storage.migrating import AUTO, code_version, meant, refuse

log = logging.getLogger("relevo.storage")

POSITION_SOURCES = ("log", "wal")
"""Sources whose stored positions mean something in one cluster only: transaction ids, WAL positions."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What is installed, as ``{meta}`` says. ``lanes``: how many the relays share."""

    schema_version: int
    lanes: int
    source: str
    system_id: str | None


async def ensure_ready(database: Database, settings: Settings) -> Ready:
    """Return what is installed if this code may use it with these settings.

    One cheap query, and one for the system identifier where it is known. Raises ``SchemaError`` for tables that are
    missing, older, newer than allowed, read by another source or on a read-only server, and for a sequence that caches;
    ``UnreachableError`` when the database does not answer.
    """
    return await ready(database, settings.database, settings.relay.source)


async def ready(database: Database, where: DatabaseSettings, wanted: str = AUTO) -> Ready:
    """As ``ensure_ready``, for the tables at ``where``, read by ``wanted``."""
    catalog = Catalog(database.dialect, where.schema, where.prefix)
    meta = await database.run(_read(catalog), read_only=True)
    if meta is None:
        raise SchemaError(f"Relevo's tables in {database.url} are not complete. Run: relevo migrate")
    version, _, source, lanes, system_id, *_ = meta
    ours = code_version(catalog.dialect)
    if version < ours:
        raise SchemaError(
            f"Relevo's tables in {database.url} have schema version {version}, this version of Relevo needs {ours}. "
            "Run: relevo migrate"
        )
    used = wanted if wanted == source else meant(wanted, source, await database.run(_moved_from(), read_only=True))
    refuse(catalog, meta, used)
    if wanted not in (AUTO, source):
        log.warning(
            "relay.source is %r in the settings, but these tables were moved and are read by %r now, and so "
            "they will be here. Set relay.source = %r when you next change the settings",
            wanted,
            source,
            source,
        )
    if system_id is not None:
        await _check_system(database, system_id, source)
    return Ready(version, lanes, source, system_id)


async def _check_system(database: Database, stored: str, source: str) -> None:
    try:
        now = await database.run(_system_id(), read_only=True)
    except UnreachableError:
        raise
    except RelevoError as error:
        log.debug("the system identifier cannot be read, so a restored copy would not be recognised: %s", error)
        return
    if now == stored:
        return
    message = (
        f"{database.url} is another cluster (system identifier {now}) than the one these tables come from ({stored}): "
        "it was restored from a dump or copied"
    )
    if source == "wal":
        raise SchemaError(f"{message}. WAL positions mean nothing here. Run: relevo migrate; then: relevo slot recover")
    if source in POSITION_SOURCES:
        raise SchemaError(
            f"{message}. Positions of the source {source!r} do not hold here. Run: relevo source move mark (it decides "
            "by the old positions what was handed over); then, to read by positions again: relevo source move log"
        )
    log.warning(
        "%s. The source 'mark' keeps no positions, so delivery goes on. If the original still runs, both now deliver "
        "the same events. `relevo migrate` records the new identifier and ends this warning",
        message,
    )


def _read(catalog: Catalog) -> Script[Row | None]:
    rows = yield Statement("meta.read", {"outbox": catalog.table("outbox")})
    return rows[0] if rows else None


def _moved_from() -> Script[str | None]:
    rows = yield Statement("meta.moved")
    return rows[0][0] if rows else None


def _system_id() -> Script[str]:
    rows = yield Statement("meta.system_id")
    return str(rows[0][0])
