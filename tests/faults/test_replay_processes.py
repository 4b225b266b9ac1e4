"""`relevo replay` as a process: killed for real between a page and its position, and resumed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from relevo import Outbox
from tests.support.cli import Cli
from tests.support.consumers import make_effects
from tests.support.events import OrderPlaced
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.waiting import eventually_sync

REPO = Path(__file__).resolve().parents[2]
ORDERS = 6


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        store = sqlite_store(tmp_path / "app.db")
    else:
        store = postgres_store(request.getfixturevalue("pg_database"))
    make_effects(store)
    connection = store.connect()
    if not store.is_postgres:
        connection.execute("begin immediate")
    for number in range(ORDERS):
        Outbox().add(connection, OrderPlaced(number))
    connection.commit()
    connection.close()
    store.do("update relevo_outbox set settled_at = created_at, outcome = 'published'")
    return store


def numbers(store: Store) -> list[int]:
    return sorted(row[0] for row in store.query("select number from effect where what = 'replayed'"))


@pytest.mark.parametrize("point", ["replay.ran", "replay.stored"])
def test_killed_it_goes_on_and_runs_nothing_twice(store: Store, tmp_path: Path, point: str) -> None:
    """*again*, killed after the second page was handled: refused while its lease lasts, then resumed; each message ran
    once, the job is done, no key is held any more, and the audit has one row."""
    cli = Cli(REPO)
    env = {
        "RELEVO_DATABASE_URL": store.url,
        "RELEVO_BROKER_URL": f"embedded:{tmp_path / 'broker.db'}",
        "RELEVO_CONSUMER_LEASE_S": "1.5",
    }
    replay = ("replay", "--consumer", "tests.support.replayed:billing")
    begin = (*replay, "--from-seq", "1", "--mode", "again", "--why", "tested", "--rate", "2", "--yes")
    killed = cli(*begin, env=env | {"RELEVO_PROBE": f"{point}=kill:2"})
    assert killed.code == -signal.SIGKILL and f"probe {point}" in killed.err
    assert len(numbers(store)) == 4
    (job,) = store.query("select job_id from relevo_job")
    resume = (*replay, "--resume", str(job[0]), "--output", "jsonl")

    def resumed() -> str:
        done = cli(*resume, env=env)
        assert done.code == 0 or "another process works on replay" in done.err, done
        return done.out

    report = json.loads(eventually_sync(resumed, what="its lease is over", every_s=0.2))
    assert (report["state"], report["failed"]) == ("done", 0)
    assert numbers(store) == list(range(ORDERS))
    again = cli(*resume, env=env)
    assert again.code == 1 and "is done" in again.err
    assert store.query("select count(*) from relevo_audit") == [(1,)]
    assert store.query("select count(*) from relevo_effect") == [(ORDERS,)]
    assert store.query("select count(*) from relevo_keep") == [(0,)]


def test_ctrl_c_leaves_a_job(store: Store, tmp_path: Path) -> None:
    """SIGINT: the page is finished, exit code 75, the command that goes on is named."""
    env = {"RELEVO_DATABASE_URL": store.url, "RELEVO_BROKER_URL": f"embedded:{tmp_path / 'broker.db'}"}
    cli = Cli(REPO)
    begin = ("replay", "--consumer", "tests.support.replayed:billing", "--from-seq", "1", "--mode", "again")
    with cli.running(*begin, "--why", "w", "--rate", "0.5", "--yes", env=env) as process:
        eventually_sync(lambda: numbers(store), what="the first page ran")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 75 and "--resume" in err
    assert store.query("select state from relevo_job") == [("paused",)]
    (job,) = store.query("select job_id from relevo_job")
    store.do("update relevo_job set rate = null")
    done = cli("replay", "--consumer", "tests.support.replayed:billing", "--resume", str(job[0]), env=env)
    assert done.code == 0 and numbers(store) == list(range(ORDERS))


def test_what_the_command_refuses(store: Store, tmp_path: Path) -> None:
    """No reason, no mode, no selection, a time without a zone; nothing is written by any of it, nor by a dry run."""
    env = {"RELEVO_DATABASE_URL": store.url, "RELEVO_BROKER_URL": f"embedded:{tmp_path / 'broker.db'}"}
    cli = Cli(REPO)
    base = ("replay", "--consumer", "tests.support.replayed:billing")
    assert "--why" in cli(*base, "--from-seq", "1", "--mode", "repair", env=env).err
    assert cli(*base, "--from-seq", "1", env=env).code == 2
    assert "nothing is selected" in cli(*base, "--mode", "repair", "--dry-run", env=env).err
    assert "no time zone" in cli(*base, "--since", "2026-01-01", "--mode", "repair", env=env).err
    dry = cli(*base, "--from-seq", "1", "--mode", "again", "--dry-run", "--output", "json", env=env)
    assert json.loads(dry.out)["runs"] == ORDERS
    repair = cli(*base, "--from-seq", "1", "--mode", "repair", "--dry-run", env=env)
    assert repair.out.startswith(f"{ORDERS} messages match; 0 would be run again (repair) for billing")
    assert store.query("select count(*) from relevo_job") == [(0,)] and numbers(store) == []
