"""``relevo bench`` as a person types it: what it refuses, what it says, what it leaves behind."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import psycopg
import pytest

from tests.support.cli import Cli

SMALL = ("--events", "60", "--seconds", "1", "--rate", "20")


@pytest.fixture
def relevo(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    (tmp_path / "relevo.toml").write_text('[database]\nurl = "sqlite:///app.db"\n')
    assert cli("migrate").code == 0
    return cli


def outbox_of(folder: Path) -> list[tuple[str, int]]:
    with sqlite3.connect(folder / "app.db") as connection:
        return connection.execute("select topic, count(*) from relevo_outbox group by topic").fetchall()


def test_refused_without_yes(relevo: Cli, tmp_path: Path) -> None:
    """Nothing is written, and the way on is named; a dry run says as JSON what would be done."""
    relevo("bench", *SMALL).refused(78, "--dry-run", "--yes")
    plan = json.loads(relevo("bench", *SMALL, "--dry-run", "--output", "json").out)
    assert (plan["events"], plan["topic"], plan["writers"]) == (60, "relevo.bench", 1)
    assert outbox_of(tmp_path) == []
    relevo("bench", *SMALL, "--topic", "a b", "--yes").refused(78, "topic")


def test_messages_that_wait_are_not_sent_by_it(relevo: Cli, tmp_path: Path) -> None:
    """Somebody's message is in the outbox: refused, and it stays where it is."""
    with sqlite3.connect(tmp_path / "app.db") as connection:
        connection.execute(
            "insert into relevo_outbox (event_id, bucket, topic, type, payload) values "
            "('018f5b1e-0000-7000-8000-000000000001', 1, 'shop.order', 'shop.order.placed', x'7b7d')"
        )
    relevo("bench", *SMALL, "--yes").refused(3, "1 messages wait")
    assert outbox_of(tmp_path) == [("shop.order", 1)]


def test_on_postgres_and_kafka(relevo: Cli, tmp_path: Path, pg_database: str, kafka_url: str) -> None:
    """All figures are there, the rows are gone, and the audit knows who it was."""
    topic = f"bench.{tmp_path.name}".replace("_", "-")
    (tmp_path / "relevo.toml").write_text(f'[database]\nurl = "{pg_database}"\n[broker]\nurl = "{kafka_url}"\n')
    assert relevo("migrate").code == 0
    done = relevo("bench", *SMALL, "--topic", topic, "--yes", "--actor", "ann@desk", "--output", "json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["removed"] == 60 + 20
    assert report["append_per_s"] > 0 and report["drain_per_s"] > 0 and report["relay_cpu_s"] > 0
    assert 0 <= report["latency"]["p50_ms"] <= report["latency"]["p99_ms"] <= report["latency"]["max_ms"]
    assert {"fsync", "synchronous_commit"} <= report["database_settings"].keys()
    assert "acks=all" in report["broker_confirms"]
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("select count(*) from relevo_outbox").fetchone() == (0,)
        assert connection.execute("select actor, count from relevo_audit").fetchall() == [("ann@desk", 80)]


def test_the_rows_go_also_when_the_relay_dies(relevo: Cli, tmp_path: Path) -> None:
    """Killed between the broker's confirm and the settle: said in one line, and the outbox is as it was."""
    done = relevo("bench", *SMALL, "--yes", env={"RELEVO_PROBE": "relay.confirmed=kill:1"})
    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines()[-1].startswith("relevo: the relay ended by itself")
    assert outbox_of(tmp_path) == []
