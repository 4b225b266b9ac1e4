"""Creating the tables, on a real PostgreSQL and on SQLite: once, twice, by six processes, and by a printed script."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import CheckFailedError, ConfigError, SchemaError
from relevo.ops.migrate import check, migrate, pending, sql
from relevo.settings import Settings, load
from relevo.storage import migrating
from relevo.storage.ready import ensure_ready

NAMES = {"default": {}, "own names": {"database.schema": "shop", "database.prefix": "msg_"}}


@pytest.fixture(params=["postgresql", "sqlite"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings for a database without Relevo's tables, one per dialect."""
    if request.param == "sqlite":
        return load(environ={}, overrides={"database.url": f"sqlite:///{tmp_path / 'relevo.db'}"})
    return load(environ={}, overrides={"database.url": request.getfixturevalue("pg_database")})


def test_a_fresh_database_gets_all_tables_and_a_second_run_changes_nothing(settings: Settings) -> None:
    """Everything is pending, then applied and reported in order, then nothing is left to do."""
    todo = pending(settings)
    assert [migration.number for migration in todo] == list(range(1, len(todo) + 1))
    assert migrate(settings, dry_run=True).applied == todo
    assert pending(settings) == todo, "a dry run changes nothing"
    with pytest.raises(CheckFailedError, match="relevo migrate"):
        check(settings)

    reported: list[migrating.Migration] = []
    assert migrate(settings, report=reported.append).applied == todo
    assert tuple(reported) == todo
    assert migrate(settings).applied == ()
    assert check(settings) == todo[-1].number


async def test_the_bookkeeping_says_what_was_installed(settings: Settings) -> None:
    """Relay and consumer read it at the start: version, lanes, source, and the cluster on PostgreSQL."""
    migrate(settings)
    database = database_for(settings.database)
    try:
        ready = await ensure_ready(database, settings)
    finally:
        await database.aclose()
    source = "log" if database.dialect == "postgresql" else "mark"
    assert (ready.schema_version, ready.lanes, ready.source) == (migrating.code_version(database.dialect), 64, source)
    assert (ready.system_id is not None) == (database.dialect == "postgresql")
    assert _count_lanes(settings) == 64


def test_six_processes_at_once_make_one_schema(settings: Settings, tmp_path: Path) -> None:
    """A deploy that starts six replicas, each of which migrates first: one does the work, none fails."""
    program = (
        "import sys; from relevo.ops.migrate import migrate; from relevo.settings import load\n"
        "sys.stdin.readline()\n"
        f"done = migrate(load(environ={{}}, overrides={{'database.url': {settings.database.url!r}}}))\n"
        "print(*[m.number for m in done.applied])"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for process in processes:  # all have imported and wait; let them go together
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, [error for _, error in results]
    applied = sorted(int(number) for output, _ in results for number in output.split())
    assert applied == [migration.number for migration in migrating.migrations(_dialect(settings))]


def test_a_changed_file_is_refused(settings: Settings) -> None:
    """A migration that was applied with another text means that nobody knows what the tables look like."""
    migrate(settings)
    _execute(settings, "update relevo_migration set checksum = 'another' where number = 1")
    with pytest.raises(SchemaError, match="0001_tables was applied with another text"):
        migrate(settings)


def test_an_interrupted_run_goes_on_where_it_stopped(settings: Settings) -> None:
    """Each migration commits with its row: after the first one alone, the second is pending, not both."""
    real = migrating.migrations(_dialect(settings))
    failing = (real[0], migrating.Migration(2, real[1].name, "create table {meta} (broken integer);"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrating, "migrations", lambda _: failing)
        with pytest.raises(Exception, match="already exists"):
            migrate(settings)
    assert pending(settings) == real[1:]
    assert migrate(settings).applied == real[1:]


@pytest.mark.parametrize(
    "change",
    [
        "bucket = 1024",
        "bucket = -1",
        "kind = 'x'",
        "headers = '[1]'",
        "created_at = 'infinity'",
        "created_at = '1969-12-31 23:00+00'",
        "outcome = 'x'",
    ],
)
def test_one_check_stands_for_all(pg_database: str, change: str) -> None:
    """What no row of the outbox may be, whoever writes it; also on tables that had a check for each (decision 0011)."""
    settings = load(environ={}, overrides={"database.url": pg_database})
    real = migrating.migrations("postgresql")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrating, "migrations", lambda _: real[:8])
        migrate(settings)
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(
            "insert into relevo_outbox (event_id, bucket, topic, type) values (gen_random_uuid(), 1, 't', 'x')"
        )
        migrate(settings)
        checks = connection.execute(
            "select conname from pg_constraint where conrelid = 'relevo_outbox'::regclass and contype = 'c'"
        ).fetchall()
        assert checks == [("valid",)]
        with pytest.raises(psycopg.errors.CheckViolation, match="valid"):
            connection.execute(f"update relevo_outbox set {change}".encode())


async def test_a_newer_schema_is_used_within_its_bound_and_refused_beyond(settings: Settings) -> None:
    """A rolling deploy: the new version migrated first. Old code goes on as long as `oldest_code` says it may."""
    migrate(settings)
    newer = migrating.migrations(_dialect(settings))[-1].number + 1
    database = database_for(settings.database)
    try:
        _execute(settings, f"update relevo_meta set schema_version = {newer}")
        assert (await ensure_ready(database, settings)).schema_version == newer
        assert migrate(settings).applied == ()

        _execute(settings, f"update relevo_meta set oldest_code = {newer}")
        with pytest.raises(SchemaError, match="Upgrade relevo"):
            await ensure_ready(database, settings)
        with pytest.raises(SchemaError, match="Upgrade relevo"):
            migrate(settings)
    finally:
        await database.aclose()


async def test_missing_and_older_tables_are_told_apart(settings: Settings) -> None:
    """Both say `relevo migrate`; the older one says which version is there."""
    database = database_for(settings.database)
    try:
        with pytest.raises(SchemaError, match=r"missing.*relevo migrate"):
            await ensure_ready(database, settings)
        migrate(settings)
        _execute(settings, "update relevo_meta set schema_version = 1")
        with pytest.raises(
            SchemaError, match=r"have schema version 1, this version of Relevo needs \d+.*relevo migrate"
        ):
            await ensure_ready(database, settings)
        _execute(settings, "delete from relevo_meta")
        with pytest.raises(SchemaError, match=r"not complete.*relevo migrate"):
            await ensure_ready(database, settings)
    finally:
        await database.aclose()


async def test_the_source_of_the_tables_never_changes_silently(settings: Settings) -> None:
    """Settings that name another source than the stored one are refused by everybody who would use it."""
    settings.relay.source = "mark"
    migrate(settings)
    _execute(settings, "update relevo_meta set source = 'log'")
    database = database_for(settings.database)
    try:
        with pytest.raises(SchemaError, match="relevo source move"):
            await ensure_ready(database, settings)
    finally:
        await database.aclose()
    with pytest.raises(SchemaError, match="relevo source move"):
        migrate(settings)


@pytest.mark.parametrize("source", ["mark", "log"])
async def test_an_upgrade_changes_nobodys_source(settings: Settings, source: Literal["mark", "log"]) -> None:
    """Settings that leave the source open mean the one that the tables have, whatever new tables would get."""
    settings.relay.source = source
    migrate(settings)
    settings.relay.source = "auto"
    assert migrate(settings).applied == () and pending(settings) == ()
    database = database_for(settings.database)
    try:
        assert (await ensure_ready(database, settings)).source == source
    finally:
        await database.aclose()


def test_a_source_that_a_database_has_not_is_refused(tmp_path: Path) -> None:
    """`wal` is a source of PostgreSQL's."""
    url = f"sqlite:///{tmp_path / 'relevo.db'}"
    settings = load(environ={}, overrides={"database.url": url, "relay.source": "wal"})
    for act in (migrate, pending, sql):
        with pytest.raises(ConfigError, match="not in this version"):
            act(settings)


def test_the_printed_script_makes_the_schema_that_migrate_makes_on_sqlite(tmp_path: Path) -> None:
    """What a DBA runs by hand and what `relevo migrate` does are the same, row by row of sqlite_master."""
    schemas = []
    for name in ("by_migrate", "by_script"):
        settings = load(
            environ={}, overrides={"database.url": f"sqlite:///{tmp_path / name}", "database.prefix": "msg_"}
        )
        with sqlite3.connect(tmp_path / name) as connection:
            if name == "by_migrate":
                migrate(settings)
            else:
                connection.executescript(sql(settings))
                assert migrate(settings).applied == ()
            schemas.append(
                (
                    connection.execute("select type, name, tbl_name, sql from sqlite_master order by 1, 2").fetchall(),
                    connection.execute("select number, name, checksum from msg_migration").fetchall(),
                    connection.execute("select schema_version, oldest_code, source, lanes from msg_meta").fetchall(),
                    connection.execute("select lane, epoch, holder from msg_lane order by 1").fetchall(),
                )
            )
        connection.close()
    assert schemas[0] == schemas[1]


def _dialect(settings: Settings) -> migrating.Dialect:
    return "sqlite" if settings.database.url.startswith("sqlite") else "postgresql"


def _execute(settings: Settings, statement: str) -> None:
    if _dialect(settings) == "sqlite":
        connection = sqlite3.connect(settings.database.url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute(statement)
        connection.close()
    else:
        with psycopg.connect(settings.database.url) as postgres:
            postgres.execute(statement.encode())


def _count_lanes(settings: Settings) -> int:
    if _dialect(settings) == "sqlite":
        connection = sqlite3.connect(settings.database.url.removeprefix("sqlite:///"))
        (count,) = connection.execute("select count(*) from relevo_lane").fetchone()
        connection.close()
        return int(count)
    with psycopg.connect(settings.database.url) as postgres:
        row = postgres.execute("select count(*) from relevo_lane").fetchone()
        assert row is not None
        return int(row[0])
