"""``relevo migrate`` as functions: create or upgrade the tables, print the SQL, or say what is missing.

All of them block: call them from a script, a migration tool or a start-up hook, not from inside an event loop that
serves requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relevo.catalog import Catalog
from relevo.clients import dialect_of
from relevo.clients.texts import text_session
from relevo.errors import CheckFailedError
from relevo.ops import slot
from relevo.settings import Settings
from relevo.storage import migrating
from relevo.storage.migrating import Migration


@dataclass(frozen=True, slots=True)
class Migrated:
    """``applied``: done by this call (or, with ``dry_run``, what would be). ``version``: of this code.
    ``moved_from``: the system identifier the tables had before, if they were restored into another cluster."""

    applied: tuple[Migration, ...]
    version: int
    moved_from: str | None = None


def migrate(
    settings: Settings, *, dry_run: bool = False, report: Callable[[Migration], None] = lambda _: None
) -> Migrated:
    """Create or upgrade the tables in ``settings.database``. Idempotent; safe when several processes start at once.

    Each migration is a transaction of its own; ``report`` hears of it once it is committed. Raises ``SchemaError`` for
    tables this version may not touch or rights that are missing, ``UnreachableError`` if the database does not answer.
    """
    catalog = catalog_of(settings)
    version = migrating.code_version(catalog.dialect)
    if dry_run:
        return Migrated(pending(settings), version)
    migrating.check_source(catalog.dialect, settings.relay.source)
    with text_session(settings.database) as session:
        applied = migrating.apply(session, catalog, settings.relay.source, report)
    if applied.source == "wal":
        slot.create(settings)  # apart from the tables: a slot is made in a transaction that wrote nothing
    return Migrated(applied.migrations, version, applied.moved_from)


def pending(settings: Settings) -> tuple[Migration, ...]:
    """The migrations that ``migrate`` would apply now, in order. Changes nothing; raises as ``migrate`` does."""
    with text_session(settings.database) as session:
        return migrating.pending(session, catalog_of(settings), settings.relay.source)


def check(settings: Settings) -> int:
    """The schema version, if nothing is pending; raises ``CheckFailedError`` if something is."""
    missing = pending(settings)
    if missing:
        names = ", ".join(map(str, missing))
        raise CheckFailedError(f"{len(missing)} of Relevo's migrations are not applied: {names}. Run: relevo migrate")
    return migrating.code_version(catalog_of(settings).dialect)


def sql(settings: Settings) -> str:
    """The whole schema as a script for ``psql`` or ``sqlite3``. Connects to nothing."""
    return migrating.script(catalog_of(settings), settings.relay.source)


def catalog_of(settings: Settings) -> Catalog:
    """The names of the configured installation."""
    return Catalog(dialect_of(settings.database.url), settings.database.schema, settings.database.prefix)
