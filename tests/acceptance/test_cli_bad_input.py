"""Bad input to the real command: each gets one clear line, the right exit code and no stack trace."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.cli import Cli

USAGE, CHECK, UNREACHABLE, CONFIG = 2, 3, 69, 78
WORKERS = (["relay"], ["status"], ["migrate"], ["migrate", "--check"])


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on: bound, so that nobody else takes it, and not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def _database(url: str) -> dict[str, str]:
    return {"RELEVO_DATABASE_URL": url}


@pytest.mark.parametrize("arguments", WORKERS)
def test_wrong_url_unknown_scheme(relevo: Cli, arguments: list[str]) -> None:
    result = relevo(*arguments, env=_database("postgrse://user:hunter2@127.0.0.1/shop"))
    line = result.refused(CONFIG, "database.url", "postgrse://user:***@127.0.0.1/shop", "postgresql://", "sqlite:///")
    assert "hunter2" not in line


@pytest.mark.parametrize("arguments", WORKERS)
def test_wrong_url_unreachable_port(relevo: Cli, arguments: list[str], closed_port: int) -> None:
    result = relevo(*arguments, env=_database(f"postgresql://user:hunter2@127.0.0.1:{closed_port}/shop"))
    line = result.refused(UNREACHABLE, f"127.0.0.1:{closed_port}/shop", "does not answer")
    assert "hunter2" not in line


@pytest.mark.parametrize("arguments", WORKERS)
def test_wrong_url_no_such_database(relevo: Cli, arguments: list[str], postgres_url: str) -> None:
    url = urlsplit(postgres_url)._replace(path="/no_such_database").geturl()
    relevo(*arguments, env=_database(url)).refused(CONFIG, "/no_such_database", "does not exist", "3D000")


@pytest.mark.parametrize("arguments", WORKERS)
def test_wrong_url_nonsense(relevo: Cli, arguments: list[str]) -> None:
    """Forms that a driver would explain in its own words, or not at all."""
    for url in ("nonsense", "sqlite:///", "sqlite://file.db", "postgresql://127.0.0.1:port/shop"):
        result = relevo(*arguments, env=_database(url))
        assert result.code in (CONFIG, UNREACHABLE)
        result.refused(result.code)


def test_wrong_url_sqlite_folder_that_does_not_exist(relevo: Cli) -> None:
    env = _database("sqlite:///no/such/folder/shop.db")
    for arguments in WORKERS:
        relevo(*arguments, env=env).refused(UNREACHABLE, "no/such/folder/shop.db", "Check the path")


def test_wrong_broker_url(relevo: Cli, closed_port: int) -> None:
    assert relevo("migrate").code == 0
    line = relevo("relay", env={"RELEVO_BROKER_URL": "kafak://127.0.0.1:9092"}).refused(CONFIG, "broker.url", "kafak")
    assert "kafka:" in line


@pytest.mark.parametrize("arguments", WORKERS)
def test_missing_extra_for_postgresql(relevo: Cli, arguments: list[str]) -> None:
    """The module is named, and the line that installs it."""
    result = relevo(*arguments, env=_database("postgresql://127.0.0.1/shop"), without=("psycopg",))
    result.refused(CONFIG, "psycopg", "pip install 'relevo[postgres]'")


def test_missing_extra_for_kafka(relevo: Cli) -> None:
    assert relevo("migrate").code == 0
    result = relevo("relay", env={"RELEVO_BROKER_URL": "kafka://127.0.0.1:1"}, without=("confluent_kafka",))
    result.refused(CONFIG, "confluent-kafka", "pip install 'relevo[kafka]'")


@pytest.mark.parametrize("arguments", [["relay"], ["status"]])
def test_missing_tables(relevo: Cli, arguments: list[str], pg_database: str) -> None:
    for url in (pg_database, "sqlite:///shop.db"):
        relevo(*arguments, env=_database(url)).refused(CONFIG, "missing", "relevo migrate")


@pytest.mark.parametrize("arguments", [["relay"], ["status"]])
def test_older_schema(relevo: Cli, arguments: list[str]) -> None:
    """A database that an older Relevo made: which version, and what to do."""
    assert relevo("migrate").code == 0
    with sqlite3.connect(relevo.cwd / "relevo.db") as connection:
        connection.execute("update relevo_meta set schema_version = 1")
    relevo(*arguments).refused(CONFIG, "schema version 1", "needs", "relevo migrate")


def test_check_finds_missing_migrations(relevo: Cli) -> None:
    relevo("migrate", "--check").refused(CHECK, "0001_tables", "relevo migrate")
    assert relevo("migrate").code == 0
    assert relevo("migrate", "--check").code == 0


@pytest.mark.parametrize("arguments", WORKERS)
def test_unknown_setting_in_the_file(relevo: Cli, arguments: list[str]) -> None:
    """The file, the setting, and the nearest known one."""
    (relevo.cwd / "relevo.toml").write_text('[database]\nurll = "sqlite:///shop.db"\n')
    relevo(*arguments).refused(CONFIG, "relevo.toml", "'database.urll'", "did you mean 'database.url'")


@pytest.mark.parametrize("arguments", WORKERS)
def test_unknown_setting_in_the_environment(relevo: Cli, arguments: list[str]) -> None:
    result = relevo(*arguments, env={"RELEVO_DATABASE_URLL": "x"})
    result.refused(CONFIG, "RELEVO_DATABASE_URLL", "did you mean 'RELEVO_DATABASE_URL'")


def test_a_wrong_value_a_missing_file_and_a_file_that_is_not_toml(relevo: Cli) -> None:
    relevo("status", env={"RELEVO_RELAY_LEASE_S": "soon"}).refused(CONFIG, "relay.lease_s")
    relevo("--config", "nowhere.toml", "status").refused(CONFIG, "nowhere.toml", "relevo init")
    (relevo.cwd / "bad.toml").write_text("[database\n")
    relevo("--config", "bad.toml", "status").refused(CONFIG, "bad.toml")


def test_no_permission(relevo: Cli, pg_database: str) -> None:
    """A role without grants: what to print, and for migrate whom to ask."""
    assert relevo("migrate", env=_database(pg_database)).code == 0
    role = f"nothing_{pg_database.rpartition('_')[2]}"
    with psycopg.connect(pg_database) as connection:
        connection.execute(f"create role {role} login".encode())
    try:
        env = _database(pg_database.replace("//relevo@", f"//{role}@"))
        for arguments in (["relay"], ["status"]):
            relevo(*arguments, env=env).refused(CONFIG, "permission", "relevo migrate --grant")
        relevo("migrate", env=env).refused(CONFIG, "lacks a right", "relevo migrate --sql")
    finally:
        with psycopg.connect(pg_database) as connection:
            connection.execute(f"drop role {role}".encode())


def test_read_only_postgresql(relevo: Cli, pg_database: str) -> None:
    """As on a standby: refused before anything is taken."""
    assert relevo("migrate", env=_database(pg_database)).code == 0
    env = _database(f"{pg_database}?options=-c%20default_transaction_read_only%3Don")
    for arguments in (["relay"], ["migrate"]):
        relevo(*arguments, env=env).refused(CONFIG, "read-only")
    assert relevo("status", env=env).code == 0, "looking is allowed"


def test_read_only_sqlite(relevo: Cli) -> None:
    """A file that this user may not write: the relay says so, status still looks."""
    powerless: tuple[str, ...] = ()
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root may write to any file, and there is no setpriv to take that from it")
        powerless = (setpriv, "--bounding-set=-dac_override", "--inh-caps=-dac_override")
    assert relevo("migrate").code == 0
    for file in relevo.cwd.glob("relevo.db*"):
        file.chmod(0o444)
    relevo("relay", under=powerless).refused(CONFIG, "read-only", "rights of the file")
    assert relevo("status", under=powerless).code == 0


def test_a_sequence_with_a_cache(relevo: Cli, pg_database: str) -> None:
    """FAILURES row 4: refused, with the statement that heals it."""
    env = _database(pg_database)
    assert relevo("migrate", env=env).code == 0
    with psycopg.connect(pg_database) as connection:
        connection.execute("alter table relevo_outbox alter column seq set cache 10")
    for arguments in (["relay"], ["migrate"], ["migrate", "--check"]):
        relevo(*arguments, env=env).refused(CONFIG, "CACHE 10", "set cache 1")


def test_a_file_that_is_not_a_database(relevo: Cli) -> None:
    (relevo.cwd / "relevo.db").write_text("this is a text file, and not a short one at that\n" * 100)
    for arguments in WORKERS:
        relevo(*arguments).refused(UNREACHABLE, "relevo.db", "cannot be opened as a database")


def test_unknown_consumer_modules(relevo: Cli) -> None:
    """Form, module, attribute, type, and an import that fails: each is told apart, with what there is."""
    (relevo.cwd / "shop").mkdir()
    (relevo.cwd / "shop" / "__init__.py").write_text("")
    (relevo.cwd / "shop" / "consumers.py").write_text(
        "from relevo import Consumer\nbilling = Consumer('billing', topics=['shop.order'])\nnumber = 7\n"
    )
    (relevo.cwd / "shop" / "broken.py").write_text("import no_such_library\n")
    (relevo.cwd / "shop" / "raising.py").write_text("raise ValueError('bad day')\n")
    relevo("consume", "shop.consumers").refused(2, "MODULE:ATTRIBUTE")
    relevo("consume", "shp.consumers:billing").refused(CONFIG, "no module 'shp'", "working directory")
    relevo("consume", "shop.nowhere:billing").refused(CONFIG, "no module 'shop.nowhere'")
    relevo("consume", "shop.consumers:biling").refused(CONFIG, "'biling'", "did you mean shop.consumers:billing?")
    relevo("consume", "shop.consumers:number").refused(CONFIG, "is an int, not a Consumer", "billing")
    relevo("consume", "shop.broken:billing").refused(CONFIG, "No module named 'no_such_library'", "--debug")
    relevo("consume", "shop.raising:billing").refused(CONFIG, "ValueError: bad day", "--debug")


def test_usage_errors_exit_with_2(relevo: Cli) -> None:
    for arguments in (
        ["nonsense"],
        ["status", "--output", "xml"],
        ["migrate", "--sql", "--check"],
        ["consume"],
        ["--what"],
    ):
        result = relevo(*arguments)
        assert result.code == USAGE and "Usage: relevo" in result.err and "Traceback" not in result.err
    assert "did you mean 'migrate'" in relevo("migrat").err


def test_a_stack_trace_comes_only_when_asked_for(relevo: Cli) -> None:
    assert "Traceback" in relevo("--debug", "status").err
    assert "Traceback" in relevo("status", env={"RELEVO_DEBUG": "1"}).err
    assert "Traceback" not in relevo("status", env={"RELEVO_DEBUG": "0"}).err


def test_an_unexpected_error_names_its_type(relevo: Cli) -> None:
    """Something that is no error of ours: one line all the same, and how to see more."""
    (relevo.cwd / "relevo.py").write_text("")  # not on the path of an installed command
    result = relevo("init", env={"PYTHONPATH": str(_sabotaged(relevo.cwd))})
    result.refused(1, "unexpected ZeroDivisionError: division by zero", "--debug")


def _sabotaged(folder: Path) -> Path:
    """A folder whose sitecustomize breaks `relevo init` from inside."""
    (folder / "sabotage").mkdir()
    (folder / "sabotage" / "sitecustomize.py").write_text(
        "import relevo.ops.init as init\ndef broken(*args, **more): 1 / 0\ninit.write_settings = broken\n"
    )
    return folder / "sabotage"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["status"], ["migrate", "--sql"]])
def test_output_that_cannot_be_written(relevo: Cli, tmp_path: Path, arguments: list[str]) -> None:
    """A full disk is told as one, and is no bug of Relevo's."""
    database = _database(f"sqlite:///{tmp_path}/app.db")
    assert relevo("migrate", env=database).code == 0
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "relevo", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=os.environ | database)
    assert done.returncode == 1
    assert done.stderr.startswith("relevo: No space left on device: output or a file cannot be written")
