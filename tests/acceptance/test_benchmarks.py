"""Every benchmark can be started, and runs to its end: they are run seldom, and by people."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "ArgumentParser(" in path.read_text())
SMALL = {
    "append": "--seconds 0.3 --runs 1 --writers 2",
    "brokers": "--events 300 --rate 50 --seconds 1 --runs 1",
    "consume": "--events 500 --runs 1",
    "drain": "--relays log,naive --events 1000 --runs 1",
    "held": "--relays log --events 20000 --rate 100 --seconds 1 --runs 1",
    "hotkey": "--events 500 --keys 1,100 --runs 1",
    "indexes": "--rows 3000 --pages 3 --inserts 100 --runs 1",
    "latency": "--relays log,wal --rates 50 --seconds 1 --idle-seconds 1 --runs 1",
    "memory": "--small 500 --large 2000 --consumer-seconds 2",
    "outage": "--backlog 200 --away 2 --runs 1 --how killed",
    "pause": "--events 1000 --paused 1000 --runs 1",
    "poison": "--events 1000 --consumer-events 2000 --runs 1",
    "produce": "--messages 1000 --runs 1",
    "purge": "--rows 2000 --pairs 1",
    "scale": "--events 1000 --runs 1 --copies 1,2",
}
"""Sizes at which nothing can be learnt but that it works."""


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_does(name: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    assert "usage: " in told.stdout


def test_the_suite_names_what_is_there() -> None:
    from benchmarks import suite

    assert {name for name, *_ in (*suite.SHORT, *suite.FULL)} == set(NAMES) - {"suite"}
    assert SMALL.keys() == set(NAMES) - {"suite"}


@pytest.mark.soak
@pytest.mark.parametrize("name", SMALL)
def test_it_runs_to_its_end(name: str, postgres_url: str, kafka_url: str, rabbitmq_url: str) -> None:
    servers = {"POSTGRES": postgres_url, "KAFKA": kafka_url, "RABBITMQ": rabbitmq_url}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *SMALL[name].split()],
        cwd=ROOT,
        env={**os.environ, **{f"RELEVO_TEST_{server}_URL": url for server, url in servers.items()}},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| " in done.stdout, "no table"
