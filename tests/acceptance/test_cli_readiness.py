"""FAILURES row 17 through the real command: readiness says which destination is away, and since when."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.cli import Cli
from tests.support.ports import free_port
from tests.support.waiting import eventually_sync

REPO = Path(__file__).resolve().parents[2]


def test_readiness_and_status_name_the_destination_that_is_away(relevo: Cli) -> None:
    """No Kafka listens on that port: the message waits, nothing is held, liveness stays, and SIGTERM still ends it."""
    assert relevo("migrate").code == 0
    with sqlite3.connect(relevo.cwd / "relevo.db") as connection:
        connection.execute("insert into relevo_add (topic, type, payload) values ('shop', 'shop.sold', '{}')")
    connection.close()
    health = free_port()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        env = {
            "RELEVO_BROKER_URL": f"kafka://127.0.0.1:{closed.getsockname()[1]}",
            "RELEVO_HEALTH_PORT": str(health),
            "RELEVO_RELAY_SEND_TIMEOUT_S": "1",
            "RELEVO_RELAY_LEASE_S": "5",
        }
        with relevo.running("relay", env=env) as process:
            problem = eventually_sync(
                lambda: _ready(health).get("problems", {}).get("destination shop"), what="it shows"
            )
            assert re.search(r"\(since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\)", problem), problem
            with urllib.request.urlopen(f"http://127.0.0.1:{health}/live", timeout=10) as answer:
                assert answer.status == 200
            report = json.loads(relevo("status", "--output", "json").out)
            assert (report["pending"]["count"], report["held"]) == (1, [])
            (paused,) = report["destinations_paused"]
            assert paused["topic"] == "shop" and paused["reason"]
            process.send_signal(signal.SIGTERM)
            assert (process.wait(timeout=40), "Traceback" in process.communicate()[1]) == (0, False)


def test_effects_are_not_ready_without_a_database() -> None:
    """`relevo effects run` with the same endpoint: alive, not ready, and why; a stop is a clean one."""
    port = free_port()
    env = {"RELEVO_DATABASE_URL": _nowhere(), "RELEVO_HEALTH_PORT": str(port)}
    with Cli(REPO).running("effects", "run", "tests.support.replayed:charge", env=env) as process:
        problem = eventually_sync(
            lambda: _ready(port).get("problems", {}).get("database"), what="it shows", timeout_s=60
        )
        assert "127.0.0.1" in problem and _status(port)["live"] is True
        _stops(process)


def test_effects_are_ready_with_one(pg_database: str) -> None:
    """Ready, and which effects are performed here."""
    port = free_port()
    env = {"RELEVO_DATABASE_URL": pg_database, "RELEVO_HEALTH_PORT": str(port)}
    assert Cli(REPO)("migrate", env=env).code == 0
    with Cli(REPO).running("effects", "run", "tests.support.replayed:charge", env=env) as process:
        eventually_sync(lambda: _status(port).get("ready"), what="it is ready", timeout_s=60)
        assert _status(port)["detail"]["performing"]["effects"] == ["charge-card"]
        _stops(process)


def _stops(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert (process.wait(timeout=60), "Traceback" in process.communicate()[1]) == (0, False)


def _nowhere() -> str:
    """A database URL at which nobody listens."""
    return f"postgresql://shop@127.0.0.1:{free_port()}/shop"


def _status(port: int) -> dict[str, Any]:
    """Nothing while it does not listen yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as answer:
            return dict(json.load(answer))
    except OSError:
        return {}


def _ready(port: int) -> dict[str, Any]:
    """The body of a refusal to be ready; nothing while it is ready or does not listen yet."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10).close()
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return dict(json.load(error))
    except OSError:
        pass
    return {}
