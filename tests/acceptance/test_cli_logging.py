"""What real processes write to stderr: the application's own lines, JSON on every line, text of strangers escaped."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.waiting import eventually_sync

EVIL = "\x1b]0;pwned\x07\x1b[2J\r2026-01-01T00:00:00Z info relevo: forged\u2028\u202e\u200b"

SHOP = """
import asyncio, logging, sqlite3, sys, threading, warnings
from relevo import Consumer, Event, Backoff, Reject
{configured}
log = logging.getLogger("shop.billing")
log.info("imported")
billing = Consumer("billing", topics=["shop"], retry=Backoff(attempts=1))

async def lost() -> None:
    raise KeyError("nobody awaits it")

@billing.on("shop.sold")
def sold(event: Event, tx: sqlite3.Connection) -> None:
    log.info("handling %s", event.id)
    log.debug("a detail")
    warnings.warn("this is old", DeprecationWarning)
    warnings.warn("this is a warning")
    threading.Thread(target=lambda: 1 / 0).start()
    raise Reject("bad id {evil}")

@billing.on("shop.lost")
async def forgets(event: Event) -> None:
    asyncio.get_running_loop().create_task(lost())
"""


@pytest.fixture
def relevo(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    assert cli("migrate").code == 0
    return cli


def _append(relevo: Cli, type: str) -> None:
    import sqlite3

    with sqlite3.connect(relevo.cwd / "relevo.db") as connection:
        connection.execute("insert into relevo_add (topic, type, payload) values ('shop', ?, '{}')", (type,))
    connection.close()


def _run(relevo: Cli, *arguments: str, until: Callable[[str], bool], env: dict[str, str] | None = None) -> str:
    """What ``relevo consume`` and a relay beside it write, until the consumer's text is ``until`` and it was stopped.
    The consumer's stderr goes to a file, which is read while it works."""
    path = relevo.cwd / "consumer.log"
    with relevo.running("relay"), path.open("w") as file:
        from tests.support.cli import environment

        process = subprocess.Popen(
            relevo._command(("consume", "shop:billing", *arguments), ()),
            cwd=relevo.cwd,
            env=environment(env),
            stderr=file,
            stdout=subprocess.PIPE,
        )
        try:
            eventually_sync(lambda: until(path.read_text()), what=f"the log has it: {path}", timeout_s=40)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0 and out == b""
    return path.read_text()


def _write(relevo: Cli, configured: str = "") -> None:
    (relevo.cwd / "shop.py").write_text(SHOP.format(configured=configured, evil=EVIL.encode("unicode_escape").decode()))


def _parked(text: str) -> bool:
    return "is parked" in text and "ZeroDivisionError" in text


@pytest.mark.parametrize(("level", "lines"), [("info", ["imported", "handling"]), ("debug", ["a detail"])])
def test_the_applications_loggers_work_at_the_chosen_level(relevo: Cli, level: str, lines: list[str]) -> None:
    """B2: also while the module is imported."""
    _write(relevo)
    _append(relevo, "shop.sold")
    text = _run(relevo, "--log-level", level, until=_parked)
    for line in lines:
        assert f" shop.billing: {line}" in text
    assert ("a detail" in text) == (level == "debug")


def test_every_line_of_a_json_log_is_json(relevo: Cli) -> None:
    """B16: the ready line, the application's, warnings, a thread's error, a task that nobody awaits, the stop."""
    _write(relevo)
    _append(relevo, "shop.sold")
    _append(relevo, "shop.lost")
    found = lambda text: _parked(text) and "never retrieved" in text  # noqa: E731
    text = _run(relevo, "--log-format", "json", until=found, env={"PYTHONWARNINGS": "always"})
    records: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    messages = [record["message"] for record in records]
    assert any(message.startswith("consumers ready: billing") for message in messages)
    assert any("this is a warning" in message for message in messages)
    assert any("never retrieved" in message for message in messages)
    assert any("ZeroDivisionError" in record.get("trace", "") for record in records)
    assert {"relevo.consumer", "shop.billing", "py.warnings", "asyncio", "relevo"} <= {
        each["logger"] for each in records
    }
    (parked,) = [record for record in records if "is parked" in record["message"]]
    assert parked["level"] == "error" and parked["type"] == "shop.sold" and parked["topic"] == "shop"
    assert parked["command"].split() == f"relevo parked show --consumer billing --id {parked['event_id']}".split()
    shown = relevo(*parked["command"].split()[1:])
    assert shown.code == 0 and parked["event_id"] in shown.out


def test_an_error_that_ends_the_process_is_json_too(relevo: Cli) -> None:
    result = relevo("consume", "nowhere:billing", "--log-format", "json")
    record = json.loads(result.err)
    assert result.code == record["exit_code"] == 78 and record["level"] == "error" and "nowhere" in record["message"]


@pytest.mark.parametrize(
    "configured",
    [
        "logging.basicConfig(level='INFO', format='MINE %(name)s %(message)s')",
        "import logging.config\n"
        "logging.config.dictConfig({'version': 1, 'formatters': {'f': {'format': 'MINE %(name)s %(message)s'}}, "
        "'handlers': {'h': {'class': 'logging.StreamHandler', 'formatter': 'f'}}, "
        "'root': {'level': 'INFO', 'handlers': ['h']}})",
    ],
    ids=["basicConfig", "dictConfig"],
)
def test_an_application_that_configures_logging_wins(relevo: Cli, configured: str) -> None:
    """Also Relevo's lines are its: ``dictConfig`` switches off the loggers that are there, by default."""
    _write(relevo, configured)
    _append(relevo, "shop.sold")
    text = _run(relevo, until=_parked)
    assert "MINE shop.billing imported" in text and "MINE relevo.consumer consumer billing: " in text
    assert (
        not any(line.startswith("20") for line in text.splitlines()) and text.count("MINE shop.billing imported") == 1
    )


def test_text_of_strangers_is_escaped_in_logs_and_commands(relevo: Cli) -> None:
    """A13: in the log of the consumer and in what an operator's commands print."""
    _write(relevo)
    _append(relevo, "shop.sold")
    text = _run(relevo, until=_parked)
    outputs = [text]
    for command in (["parked", "list"], ["parked", "show", "--consumer", "billing"], ["status"]):
        result = relevo(*command)
        assert result.code == 0, result
        outputs += [result.out, result.err]
    for output in outputs:
        assert all(line.isprintable() for line in output.split("\n")), output
    assert "\\x1b[2J\\r2026" in text
    listed = relevo("parked", "list", "--output", "json")
    assert EVIL in json.loads(listed.out)[0]["reason"], "JSON is lossless"
    assert all(line.isprintable() for line in listed.out.split("\n"))


def test_a_piped_table_is_not_wrapped(relevo: Cli) -> None:
    """B16: in a file or pipe a line is a line, whatever the width of a terminal."""
    _write(relevo)
    _append(relevo, "shop.sold")
    _run(relevo, until=_parked)
    result = relevo("parked", "list", env={"COLUMNS": "40"})
    assert len(result.out.splitlines()) == 2, result.out
