"""What only PostgreSQL has: schemas, psql, sequences with a cache, standbys and copies of clusters, rights."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import ReadOnlyError, SchemaError
from relevo.ops.migrate import migrate, sql
from relevo.settings import Settings, load
from relevo.storage.migrating import migrations
from relevo.storage.ready import ensure_ready

CATALOG_QUERIES = {
    "columns": """select table_name, column_name, ordinal_position, data_type, is_nullable, column_default, is_identity
                  from information_schema.columns where table_schema = 'shop' order by 1, 3""",
    "constraints": """select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
                      where connamespace = 'shop'::regnamespace order by 1, 2""",
    "indexes": "select tablename, indexname, indexdef from pg_indexes where schemaname = 'shop' order by 1, 2",
    "functions": """select proname, pg_get_functiondef(oid) from pg_proc
                    where pronamespace = 'shop'::regnamespace order by 1""",
    "views": "select viewname, definition from pg_views where schemaname = 'shop' order by 1",
    "options": """select relname, relkind, reloptions, pg_get_expr(relpartbound, oid) from pg_class
                  where relnamespace = 'shop'::regnamespace order by 1""",
    "migrations": "select number, name, checksum from shop.msg_migration order by 1",
    "meta": "select schema_version, oldest_code, source, lanes, system_id, timeline from shop.msg_meta",
    "lanes": "select lane, epoch, holder, expires_at::text from shop.msg_lane order by 1",
}


def test_the_printed_script_through_psql_makes_the_schema_that_migrate_makes(pg_database: str, tmp_path: Path) -> None:
    """Own schema and prefix; every row of the catalogs is compared, and the rows that Relevo writes itself."""
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("psql is not installed")
    settings = _settings(pg_database, schema="shop", prefix="msg_")
    script = tmp_path / "relevo.sql"
    script.write_text(sql(settings))
    done = subprocess.run([psql, pg_database, "-v", "ON_ERROR_STOP=1", "-qf", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    by_script = _catalogs(pg_database)
    assert migrate(settings).applied == (), "the script leaves nothing to do"
    assert _catalogs(pg_database) == by_script

    with psycopg.connect(pg_database) as connection:
        connection.execute("drop schema shop cascade")
    migrate(settings)
    by_migrate = _catalogs(pg_database)
    assert by_script == by_migrate
    assert all(by_migrate.values()), "an empty answer would compare equal to anything"
    assert None not in by_migrate["meta"][0], "system identifier and timeline are known to this role"


def test_two_installations_share_a_database(pg_database: str) -> None:
    """Two services, one database: schema and prefix keep them apart, also in the lock they migrate under."""
    for overrides in ({}, {"schema": "shop"}, {"schema": "shop", "prefix": "other_"}):
        assert len(migrate(_settings(pg_database, **overrides)).applied) == len(migrations("postgresql"))
    with psycopg.connect(pg_database) as connection:
        row = connection.execute(
            "select count(*) from pg_class where relname ~ '_outbox$' and relkind = 'p'"
        ).fetchone()
    assert row == (3,)


async def test_a_sequence_that_caches_is_refused(pg_database: str) -> None:
    """FAILURES row 4: CACHE 10 lets two sessions invert a key's order. Refused with the statement that heals it."""
    settings = _settings(pg_database)
    migrate(settings)
    _execute(pg_database, "alter table relevo_outbox alter column seq set cache 10")
    database = database_for(settings.database)
    try:
        with pytest.raises(SchemaError, match=r"has CACHE 10.*set cache 1") as refused:
            await ensure_ready(database, settings)
        with pytest.raises(SchemaError, match="has CACHE 10"):
            migrate(settings)
        _execute(pg_database, str(refused.value).partition("Run: ")[2])
        await ensure_ready(database, settings)
        migrate(settings)
    finally:
        await database.aclose()


async def test_a_restored_copy_is_recognised_and_said_loudly(
    pg_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FAILURES row 7: the tables come from another cluster. `mark` keeps no positions, so it warns and goes on; migrate
    says so, records the new identifier, and the warning ends."""
    settings = _settings(pg_database)
    settings.relay.source = "mark"
    migrate(settings)
    _execute(pg_database, "update relevo_meta set system_id = '42'")
    database = database_for(settings.database)
    try:
        await ensure_ready(database, settings)
        assert "is another cluster" in caplog.text and "(42)" in caplog.text
        assert migrate(settings).moved_from == "42"
        assert migrate(settings).moved_from is None
        caplog.clear()
        await ensure_ready(database, settings)
        assert caplog.text == ""
    finally:
        await database.aclose()


async def test_positions_do_not_survive_a_restore(pg_database: str) -> None:
    """FAILURES row 7, for sources that keep positions: refused until somebody moves the tables to markers."""
    settings = _settings(pg_database)
    migrate(settings)
    _execute(pg_database, "update relevo_meta set system_id = '42', source = 'log'")
    settings.relay.source = "log"
    database = database_for(settings.database)
    try:
        with pytest.raises(SchemaError, match="relevo source move mark"):
            await ensure_ready(database, settings)
    finally:
        await database.aclose()


async def test_a_read_only_database_is_refused_in_plain_words(pg_database: str) -> None:
    """A standby looks like this to a client, and so does default_transaction_read_only."""
    migrate(_settings(pg_database))
    settings = _settings(f"{pg_database}?options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(ReadOnlyError, match="read-only"):
        migrate(settings)


def test_a_role_without_rights_is_told_what_to_do(pg_database: str) -> None:
    """Since PostgreSQL 15 nobody but the owner creates in `public`: the usual first error of an installation."""
    role = pg_database.rpartition("_")[2]
    _execute(pg_database, f"create role no_rights_{role} login")
    try:
        url = pg_database.replace("relevo@", f"no_rights_{role}@")
        with pytest.raises(SchemaError, match=r"lacks a right.*relevo migrate --sql"):
            migrate(_settings(url))
        with pytest.raises(SchemaError, match=r"lacks a right.*relevo migrate --sql"):
            migrate(_settings(url, schema="shop"))
    finally:
        _execute(pg_database, f"drop role no_rights_{role}")


def _settings(url: str, **database: str) -> Settings:
    return load(environ={}, overrides={"database.url": url} | {f"database.{k}": v for k, v in database.items()})


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())


def _catalogs(url: str) -> dict[str, list[Any]]:
    with psycopg.connect(url) as connection:
        return {name: connection.execute(query.encode()).fetchall() for name, query in CATALOG_QUERIES.items()}
