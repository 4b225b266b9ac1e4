"""The real command doing what it is for: init, migrate, relay, status; output for people and for programs."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from relevo import __version__
from relevo.ops.settings_text import destination_settings, named_consumer_settings, settings_tree
from relevo.ops.status_report import Status
from relevo.settings import Settings, load
from tests.support.cli import Cli
from tests.support.ports import free_port
from tests.support.waiting import eventually_sync


def test_init_writes_every_setting_and_refuses_to_overwrite(relevo: Cli) -> None:
    """The file is valid, names both URLs, and its comments, taken out, are the defaults."""
    result = relevo("init", "--database", "sqlite:///shop.db", "--broker", "embedded:broker.db")
    assert (result.code, result.out) == (0, "")
    text = (relevo.cwd / "relevo.toml").read_text()
    assert tomllib.loads(text)["database"] == {"url": "sqlite:///shop.db"}
    relevo("init").refused(78, "relevo.toml exists", "--force")
    assert (relevo.cwd / "relevo.toml").read_text() == text
    assert relevo("init", "--force").code == 0
    assert "relevo-broker.db" in (relevo.cwd / "relevo.toml").read_text()
    relevo("init", "--force", "--database", "mysql://x").refused(78, "database.url")


def test_the_settings_file_uncommented_is_the_default_settings(relevo: Cli) -> None:
    """Removing a `# ` changes nothing: the defaults shown are the defaults used. A setting without a default has an
    example, which is valid."""
    relevo("init")
    defaults, examples = [], {}
    without = {
        each.name: section.name for section in settings_tree() for each in section.settings if each.default is None
    }
    others = {each.name for each in (*destination_settings(), *named_consumer_settings())}
    for line in (relevo.cwd / "relevo.toml").read_text().splitlines():
        bare = line.removeprefix("# ")
        name, equals, _ = bare.partition(" = ")
        if not (line.startswith("# ") and name.isidentifier() and equals and name not in others):
            defaults.append(line)
        elif name in without:
            examples[name] = bare
        else:
            defaults.append(bare)
    (relevo.cwd / "all.toml").write_text("\n".join(defaults))
    assert load(relevo.cwd / "all.toml", environ={}) == Settings()
    sections = tomllib.loads("\n".join(defaults))
    assert set(sections["relay"]) == set(Settings().relay.__struct_fields__)
    assert set(sections["consumer"]) == set(Settings().consumer.__struct_fields__) - {"handler_idle_timeout_s"}
    assert examples.keys() == without.keys() == {"schema", "handler_idle_timeout_s"}
    (relevo.cwd / "examples.toml").write_text("".join(f"[{without[n]}]\n{line}\n" for n, line in examples.items()))
    settings = load(relevo.cwd / "examples.toml", environ={})
    assert (settings.database.schema, settings.consumer.handler_idle_timeout_s) == ("...", 120.0)


def test_migrate_reports_on_stderr_and_is_idempotent(relevo: Cli) -> None:
    dry = relevo("migrate", "--dry-run")
    assert "would apply 0001_tables" in dry.err and dry.out == ""
    first = relevo("migrate")
    assert (first.code, first.out) == (0, "")
    assert first.err.splitlines()[0] == "applied 0001_tables"
    assert "up to date: schema version" in relevo("migrate").err


def test_migrate_sql_prints_a_script_and_nothing_else(relevo: Cli) -> None:
    """stdout is the script; piped into the database it leaves nothing to do. It connects to nothing."""
    result = relevo("migrate", "--sql")
    assert (result.code, result.err) == (0, "")
    assert not (relevo.cwd / "relevo.db").exists()
    with sqlite3.connect(relevo.cwd / "relevo.db") as connection:
        connection.executescript(result.out)
    assert relevo("migrate", "--check").code == 0


def test_grants_are_printed_or_applied(relevo: Cli, pg_database: str) -> None:
    env = {"RELEVO_DATABASE_URL": pg_database}
    printed = relevo("migrate", "--sql", "--grant", "writer:shop_app,relay:shop_relay", env=env)
    assert printed.code == 0 and 'to "shop_app"' in printed.out and 'to "shop_relay"' in printed.out
    assert "create table" not in printed.out
    applied = relevo("migrate", "--grant", f"operator:{_user(pg_database)}", env=env)
    assert applied.code == 0, applied
    assert "what a operator needs" not in applied.err and "operator" in applied.err


@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_status_for_programs_is_the_documented_structure(relevo: Cli, output: str) -> None:
    relevo("migrate")
    result = relevo("status", "--output", output)
    assert result.err == ""
    report = msgspec.json.decode(result.out.encode(), type=Status)
    assert set(json.loads(result.out)) == set(Status.__struct_fields__)
    assert report.lanes.total == 64
    assert (len(result.out.splitlines()) == 1) == (output == "jsonl")


def test_status_for_people_names_what_to_look_at(relevo: Cli) -> None:
    relevo("migrate")
    with sqlite3.connect(relevo.cwd / "relevo.db") as connection:
        connection.execute("insert into relevo_add (topic, type, payload) values ('shop', 'shop.sold', '{}')")
    result = relevo("status")
    assert result.code == 0
    assert "pending" in result.out and "1, oldest" in result.out
    assert "warning: messages are pending and no relay is running. Start one: relevo relay" in result.out


def test_a_relay_delivers_reports_its_health_and_drains_on_sigterm(relevo: Cli, tmp_path: Path) -> None:
    """One process from start to end: ready line, health, delivery, status, SIGTERM, exit code 0, lanes given back."""
    relevo("migrate")
    port = free_port()
    _make_topic(relevo)
    with relevo.running("relay", env={"RELEVO_HEALTH_PORT": str(port), "RELEVO_LOG_FORMAT": "json"}) as process:
        assert process.stderr is not None
        messages = (json.loads(line)["message"] for line in iter(process.stderr.readline, ""))
        ready = next(message for message in messages if message.startswith("relay ready: "))
        assert f"health on 127.0.0.1:{port}" in ready and "sqlite:///relevo.db -> embedded:relevo-broker.db" in ready
        with sqlite3.connect(relevo.cwd / "relevo.db") as connection:
            connection.execute("insert into relevo_add (topic, type, payload) values ('shop', 'shop.sold', '{}')")
        connection.close()
        eventually_sync(lambda: _report(relevo).pending.count == 0, what="the message is handed over")
        eventually_sync(lambda: _report(relevo).relays[0].lanes == 64, what="the only relay owns every lane")
        assert _http(port, "/live") == 200 and _http(port, "/ready") == 200 and _http(port, "/nothing") == 404
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[1]
        assert process.returncode == 0
        assert all(json.loads(line)["level"] for line in rest.splitlines())
    after = _report(relevo)
    assert after.relays == [] and after.lanes.free == 64


def test_consumers_handle_and_drain_on_sigterm(relevo: Cli) -> None:
    """Append, relay and consume in three processes that share two files; SIGTERM ends both workers with 0."""
    (relevo.cwd / "shop.py").write_text(
        "import sqlite3\nfrom relevo import Consumer, Event\n"
        "billing = Consumer('billing', topics=['shop'])\n"
        "@billing.on('shop.sold')\n"
        "def sold(event: Event, tx: sqlite3.Connection) -> None:\n"
        "    tx.execute('insert into sold values (?)', (event.data.payload.decode(),))\n"
    )
    relevo("migrate")
    with sqlite3.connect(relevo.cwd / "relevo.db") as connection:
        connection.execute("create table sold (payload text)")
        connection.execute("insert into relevo_add (topic, type, payload) values ('shop', 'shop.sold', '{\"n\": 1}')")
    _make_topic(relevo)
    port = free_port()
    with (
        relevo.running("relay") as relay,
        relevo.running("consume", "shop:billing", env={"RELEVO_HEALTH_PORT": str(port)}) as consumer,
    ):
        assert consumer.stderr is not None
        ready = next(line for line in iter(consumer.stderr.readline, "") if line.startswith("consumers ready: "))
        assert "billing <- embedded:relevo-broker.db" in ready
        eventually_sync(lambda: connection.execute("select payload from sold").fetchall(), what="the handler ran")
        assert connection.execute("select payload from sold").fetchall() == [('{"n": 1}',)]
        assert _http(port, "/ready") == 200
        (shown,) = _report(relevo).consumers
        assert (shown.name, shown.topics, shown.pid) == ("billing", ["shop"], consumer.pid)
        for process in (consumer, relay):
            process.send_signal(signal.SIGTERM)
            assert (process.wait(timeout=30), "Traceback" in process.communicate()[1]) == (0, False)
    connection.close()
    assert _report(relevo).consumers == []


def test_watch_shows_it_again_until_interrupted(relevo: Cli) -> None:
    relevo("migrate")
    with relevo.running("status", "--watch", "--output", "jsonl") as process:
        assert process.stdout is not None
        first, second = json.loads(process.stdout.readline()), json.loads(process.stdout.readline())
        assert first["lanes"] == second["lanes"] == {"total": 64, "free": 64}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_reader_that_stops_reading_is_no_error(relevo: Cli) -> None:
    """`relevo migrate --sql | head -1`."""
    with relevo.running("migrate", "--sql") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.wait(timeout=20)
        assert process.stderr.read() == ""


def test_version_and_help(relevo: Cli) -> None:
    assert relevo("--version").out == f"relevo, version {__version__}\n"
    out = relevo("--help").out
    for name in ("init", "migrate", "relay", "consume", "status", "demo"):
        assert name in out
    assert relevo().code in (0, 2)


def test_the_command_line_starts_fast(relevo: Cli) -> None:
    """What `relevo --help` imports: none of the drivers, no rich, no asyncio, no command's own module."""
    program = (
        "import sys\nfrom relevo.cli.main import run\nrun(['--version'])\n"
        "heavy = {'asyncio', 'rich', 'psycopg', 'sqlalchemy', 'confluent_kafka', 'asyncpg', 'sqlite3'}\n"
        "ours = [m for m in sys.modules if m.startswith(('relevo.ops', 'relevo.relay'))]\n"
        "print(sorted(heavy & set(sys.modules)), ours)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] []"


def _make_topic(relevo: Cli) -> None:
    program = (
        "import asyncio; from relevo.brokers import broker_for\n"
        "asyncio.run(broker_for('embedded:relevo-broker.db').ensure_topics(['shop']))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=relevo.cwd, check=True)


def _report(relevo: Cli) -> Status:
    return msgspec.json.decode(relevo("status", "--output", "json").out.encode(), type=Status)


def _http(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _user(url: str) -> str:
    return url.partition("//")[2].partition("@")[0].partition(":")[0]
