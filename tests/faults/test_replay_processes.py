"""`relevo replay` as a process: killed for real between a page and its position, and resumed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from relevo import Outbox
from relevo.brokers import broker_for
from tests.support.cli import Cli
from tests.support.consumers import make_effects
from tests.support.events import OrderPlaced
from tests.support.letters import read
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
    assert (report["state"], report["failed"], report["done"], report["total"]) == ("done", 0, ORDERS, ORDERS)
    assert numbers(store) == list(range(ORDERS))
    again = cli(*resume, env=env)
    assert again.code == 1 and "is done" in again.err
    assert store.query("select count(*) from relevo_audit") == [(1,)]
    assert store.query("select count(*) from relevo_effect") == [(ORDERS,)]
    assert store.query("select count(*) from relevo_keep") == [(0,)]


def test_killed_and_cancelled_every_key_is_live(store: Store, tmp_path: Path) -> None:
    """*again*, killed in the middle, and nobody wants it any more: `relevo jobs cancel` frees the keys that the dead
    process held, at once and without a consumer running; the job cannot be resumed, and the audit says who."""
    cli = Cli(REPO)
    env = {
        "RELEVO_DATABASE_URL": store.url,
        "RELEVO_BROKER_URL": f"embedded:{tmp_path / 'broker.db'}",
        "RELEVO_CONSUMER_LEASE_S": "600",
    }
    replay = ("replay", "--consumer", "tests.support.replayed:billing")
    begin = (*replay, "--from-seq", "1", "--mode", "again", "--why", "tested", "--rate", "2", "--yes")
    killed = cli(*begin, env=env | {"RELEVO_PROBE": "replay.ran=kill:2"})
    assert killed.code == -signal.SIGKILL
    assert store.query("select count(*) from relevo_held_key") == [(4,)]
    (job,) = json.loads(cli("jobs", "list", "--state", "running", "--output", "json", env=env).out)
    assert (job["kind"], job["done"], job["total"]) == ("replay", 2, ORDERS)
    done = cli("jobs", "cancel", job["job_id"], "--why", "wrong day", "--as", "bob", env=env)
    assert done.code == 0 and "is cancelled" in done.err and "not live yet" not in done.err, done
    assert store.query("select count(*) from relevo_held_key") == [(0,)]
    assert store.query("select count(*) from relevo_keep") == [(0,)]
    resumed = cli(*replay, "--resume", job["job_id"], env=env)
    assert resumed.code == 1 and "is cancelled" in resumed.err
    cli("jobs", "cancel", job["job_id"], env=env).refused(1, "is cancelled already")
    acts = store.query("select action, actor, reason from relevo_audit order by audit_id")
    assert acts[1] == ("job.cancel", "bob", "wrong day") and acts[0][0] == "replay.again"


def test_a_killed_replay_into_a_topic_is_resumed(store: Store, tmp_path: Path) -> None:
    """Killed after the second page was published and before its position was stored: resumed, that page is there twice
    under the same ids, the others once; the count ends at the total."""
    cli = Cli(REPO)
    broker_url = f"embedded:{tmp_path / 'broker.db'}"
    env = {"RELEVO_DATABASE_URL": store.url, "RELEVO_BROKER_URL": broker_url, "RELEVO_CONSUMER_LEASE_S": "1.5"}
    into = ("replay", "--into", "shop.order.copy")
    begin = (*into, "--topic", "shop.order", "--from-seq", "1", "--why", "tested", "--rate", "2", "--yes")
    killed = cli(*begin, env=env | {"RELEVO_PROBE": "replay.ran=kill:2"})
    assert killed.code == -signal.SIGKILL
    (job,) = json.loads(cli("jobs", "list", "--output", "json", env=env).out)
    assert job["done"] == 2

    def resumed() -> str:
        done = cli(*into, "--resume", job["job_id"], "--output", "jsonl", env=env)
        assert done.code == 0 or "another process works on replay" in done.err, done
        return done.out

    report = json.loads(eventually_sync(resumed, what="its lease is over", every_s=0.2))
    assert (report["state"], report["done"], report["total"]) == ("done", ORDERS, ORDERS)
    found = asyncio.run(read(broker_for(broker_url), "shop.order.copy", "test", ORDERS + 2))
    numbers_there = Counter(json.loads(message.payload or b"")["order_id"] for message in found)
    assert numbers_there == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 5: 1}
    assert len({message.event_id for message in found}) == ORDERS


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
    ran = numbers(store)
    resume = ("replay", "--consumer", "tests.support.replayed:billing", "--resume", str(job[0]))
    dry = cli(*resume, "--dry-run", "--output", "json", env=env)
    assert dry.code == 0 and json.loads(dry.out)["done"] == len(ran) and json.loads(dry.out)["state"] == "paused"
    assert f"{len(ran)} of {ORDERS} messages are done" in cli(*resume, "--dry-run", env=env).out
    kept = ("--key", "a", "--mode", "again", "--since", "1h", "--source", "outbox", "--why", "w")
    for dry_run in ((), ("--dry-run",)):
        refused = cli(*resume, *kept, *dry_run, env=env)
        assert refused.code == 2 and "leave out --since, --key, --source, --mode, --why." in refused.err
    cli("replay", "--into", "shop.other", "--resume", str(job[0]), env=env).refused(2, "not into shop.other")
    assert numbers(store) == ran and store.query("select state from relevo_job") == [("paused",)]
    done = cli(*resume, "--rate", "1000", env=env)
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
