"""Creating and upgrading Relevo's tables: numbered SQL files, owned by Relevo, applied in order and remembered.

Everything here is text: ``script`` prints exactly the statements that ``apply`` runs. Each migration commits together
with its row in ``{migration}``; a crash in between leaves whole migrations only, and the next run goes on. Several runs
at once take turns: by a transaction-level advisory lock on PostgreSQL, by ``begin immediate`` on SQLite.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from relevo.catalog import Catalog
from relevo.clients.texts import DatabaseError, TextSession
from relevo.errors import ConfigError, SchemaError
from relevo.ports.database import Dialect
from relevo.script import Row, Rows

LANES = 64
"""Lanes of a new installation."""

OLDEST_CODE = 1
"""The oldest schema version whose code may still use the tables that this code makes."""

MOVES_SINCE = 8
"""The schema version from which on the source can be moved."""

AUTO = "auto"
"""As settings say it: whatever the tables are read by."""

NEW_SOURCE: Mapping[Dialect, str] = {"postgresql": "log", "sqlite": "mark"}
"""What the tables of a new installation are read by, unless settings say."""

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql\Z")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


@dataclass(frozen=True, slots=True)
class Applied:
    """What one ``apply`` did. ``moved_from``: the system identifier that was stored before, if it has changed (the
    database was restored into another cluster). ``source``: what the tables are read by."""

    migrations: tuple[Migration, ...]
    moved_from: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file. ``text`` has its placeholders; the checksum is of that, so it holds for every prefix."""

    number: int
    name: str
    text: str = field(repr=False)

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """All migrations of this version, in order."""
    found = []
    for file in _folder(dialect).iterdir():
        match = _FILE.match(file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.number))


def code_version(dialect: Dialect) -> int:
    """The schema version that this version of Relevo was written for: the number of its last migration."""
    return migrations(dialect)[-1].number


def check_source(dialect: Dialect, source: str) -> None:
    """Raise ``ConfigError`` if this version cannot read the outbox through ``source``."""
    if source != AUTO and not (_folder(dialect) / f"source_{source}.sql").is_file():
        raise ConfigError(f"relay.source {source!r} is not in this version of Relevo: use relay.source = 'mark'")


def script(catalog: Catalog, source: str) -> str:
    """The whole schema as one transaction that ``psql`` or ``sqlite3`` runs as it is, on a database without it."""
    check_source(catalog.dialect, source)
    source = NEW_SOURCE[catalog.dialect] if source == AUTO else source
    parts = [
        f"-- Relevo's tables, schema version {code_version(catalog.dialect)}. Printed by: relevo migrate --sql",
        "begin;" if catalog.dialect == "postgresql" else "begin immediate;",
        *_prepare(catalog),
    ]
    for migration in migrations(catalog.dialect):
        parts += _step(catalog, migration, source)
    parts += [*_finish(catalog, source), "commit;"]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def pending(session: TextSession, catalog: Catalog, source: str) -> tuple[Migration, ...]:
    """The migrations not applied yet. Raises ``SchemaError`` where ``apply`` would refuse."""
    check_source(catalog.dialect, source)
    meta = _meta(session, catalog)
    return _compare(catalog, _applied(session, catalog), meta, _meant(session, catalog, meta, source))


def apply(session: TextSession, catalog: Catalog, source: str, report: Callable[[Migration], None]) -> Applied:
    """Bring the tables to this version; ``report`` each migration once committed.

    Raises ``SchemaError`` for a changed file, a schema that is too new, another source than the stored one, a sequence
    that caches, and missing rights.
    """
    check_source(catalog.dialect, source)
    done: list[Migration] = []
    while True:
        with session.transaction():
            try:
                session.execute("\n".join(_prepare(catalog)))
                before = _meta(session, catalog)
                source = _meant(session, catalog, before, source)
                todo = _compare(catalog, _applied(session, catalog), before, source)
                if todo:
                    session.execute("\n".join(_step(catalog, todo[0], source)))
                if len(todo) <= 1:
                    session.execute("\n".join(_finish(catalog, source)))
                after = _meta(session, catalog)
            except DatabaseError as error:
                raise _explained(error) from error
        if todo:
            done.append(todo[0])
            report(todo[0])
        if len(todo) <= 1:
            moved = before is not None and after is not None and before[4] is not None and before[4] != after[4]
            return Applied(tuple(done), str(before[4]) if moved and before else None, source)


def refuse(catalog: Catalog, meta: Row, source: str) -> None:
    """Raise ``SchemaError`` for a stored state (a ``meta.read`` row) that this code or these settings may not use."""
    version, oldest_code, stored_source, _, _, standby, read_only, cache_size = meta
    ours = code_version(catalog.dialect)
    if version > ours and oldest_code > ours:
        raise SchemaError(
            f"the tables have schema version {version} and allow code of version {oldest_code} or later; this Relevo "
            f"is of version {ours}. Upgrade relevo"
        )
    if stored_source != source:
        raise SchemaError(
            f"relay.source is {source!r} in the settings, but these tables are read by {stored_source!r}. Set "
            f"relay.source = {stored_source!r}; {_instead(catalog.dialect, stored_source, source)}"
        )
    if standby:
        raise SchemaError("this server is a standby: point Relevo at the primary")
    if read_only:
        raise SchemaError(
            "this connection is read-only (default_transaction_read_only): give Relevo one that may write"
        )
    if cache_size is not None and cache_size != 1:
        raise SchemaError(
            f"the sequence of {catalog.table('outbox')} has CACHE {cache_size}, which inverts the order of a key's "
            f"messages. Run: alter table {catalog.table('outbox')} alter column seq set cache 1"
        )


def meant(source: str, stored: str, moved_from: str | None) -> str:
    """The source that settings mean with ``source``: what is ``stored`` if they leave it open. Once tables were
    moved, by however many moves, it is theirs that counts, until somebody gets round to changing the settings: so
    relays can be restarted at any time."""
    return source if moved_from is None and source != AUTO else stored


def _instead(dialect: Dialect, stored: str, wanted: str) -> str:
    if wanted != "wal" or dialect == "postgresql":
        return f"to change the source, run: relevo source move {wanted}"
    return f"{wanted!r} is not to be had on this database"


def _meant(session: TextSession, catalog: Catalog, meta: Row | None, source: str) -> str:
    if source == AUTO:
        return NEW_SOURCE[catalog.dialect] if meta is None else str(meta[2])
    if meta is None or meta[0] < MOVES_SINCE:
        return source
    return meant(source, meta[2], session.execute(_text(catalog, "meta.moved"))[0][0])


def _prepare(catalog: Catalog) -> Iterator[str]:
    if catalog.dialect == "postgresql":
        yield _text(catalog, "meta.lock", schema=catalog.schema, prefix=catalog.prefix)
        if catalog.schema:
            yield _text(catalog, "meta.create_schema", schema=catalog.schema)
    yield _text(catalog, "meta.create_migration")


def _step(catalog: Catalog, migration: Migration, source: str) -> Iterator[str]:
    yield f"-- {migration}"
    yield catalog.fill(migration.text)
    yield _text(catalog, "meta.record", number=migration.number, name=migration.name, checksum=migration.checksum)
    yield _text(catalog, "meta.write", number=migration.number, oldest_code=OLDEST_CODE, source=source, lanes=LANES)


def _finish(catalog: Catalog, source: str) -> Iterator[str]:
    yield catalog.fill((_folder(catalog.dialect) / f"source_{source}.sql").read_text("utf-8"))
    if catalog.dialect == "postgresql":
        yield _text(catalog, "meta.write_system")


def _compare(catalog: Catalog, applied: Rows, meta: Row | None, source: str) -> tuple[Migration, ...]:
    if meta is not None:
        refuse(catalog, meta, source)
    known = {migration.number: migration for migration in migrations(catalog.dialect)}
    for number, name, checksum in applied:
        ours = known.get(number)
        if ours is not None and ours.checksum != checksum:
            raise SchemaError(
                f"migration {number:04}_{name} was applied with another text than the one in this version of Relevo. "
                "A file of Relevo's was changed: reinstall the version that made these tables"
            )
    have = {row[0] for row in applied}
    return tuple(migration for migration in known.values() if migration.number not in have)


def _applied(session: TextSession, catalog: Catalog) -> Rows:
    return session.execute(_text(catalog, "meta.applied")) if _exists(session, catalog, "migration") else ()


def _meta(session: TextSession, catalog: Catalog) -> Row | None:
    if not _exists(session, catalog, "meta"):
        return None
    rows = session.execute(_text(catalog, "meta.read", outbox=catalog.table("outbox")))
    return rows[0] if rows else None


def _exists(session: TextSession, catalog: Catalog, table: str) -> bool:
    name = catalog.table(table) if catalog.dialect == "postgresql" else catalog.prefix + table
    return bool(session.execute(_text(catalog, "meta.table_exists", table=name))[0][0])


def _explained(error: DatabaseError) -> Exception:
    if error.code == "55P03":
        return SchemaError(
            "a table stayed locked for 10 s by somebody else, so nothing was changed by this migration. Run it again "
            "when long transactions have ended"
        )
    return error


def _text(catalog: Catalog, statement: str, /, **values: str | int | None) -> str:
    """A named statement with literals for parameters. The values are Relevo's own: numbers, names, checksums."""

    def literal(match: re.Match[str]) -> str:
        value = values[match[1]]
        if value is None:
            return "null"
        return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"

    return _PARAMETER.sub(literal, catalog.text(statement)) + ";"


def _folder(dialect: Dialect) -> resources.abc.Traversable:
    folder = "postgres" if dialect == "postgresql" else dialect
    return resources.files("relevo.storage") / folder / "migrations"


__all__: Sequence[str] = [
    "AUTO",
    "LANES",
    "MOVES_SINCE",
    "NEW_SOURCE",
    "OLDEST_CODE",
    "Applied",
    "Migration",
    "apply",
    "check_source",
    "code_version",
    "meant",
    "migrations",
    "pending",
    "refuse",
    "script",
]
