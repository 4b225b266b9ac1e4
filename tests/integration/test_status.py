"""`status` against real databases: what it counts, what it warns about, and that it stays cheap."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import SchemaError
from relevo.ops import status as status_module
from relevo.ops.migrate import catalog_of, migrate
from relevo.ops.status import status
from relevo.ops.status_report import Status
from relevo.settings import Settings, load
from relevo.storage import migrating

RELAY = "00000000-0000-7000-8000-00000000000a"
ONE, TWO, THREE = (f"00000000-0000-7000-8000-00000000000{n}" for n in (1, 2, 3))


@pytest.fixture(params=["postgresql", "sqlite"])
async def installed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Installed]:
    url = f"sqlite:///{tmp_path / 'relevo.db'}" if request.param == "sqlite" else request.getfixturevalue("pg_database")
    settings = load(environ={}, overrides={"database.url": url})
    migrate(settings)
    yield Installed(settings)


class Installed:
    """A migrated database, and a prompt to it in the dialect's own words."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.postgres = settings.database.url.startswith("postgresql")

    async def status(self) -> Status:
        database = database_for(self.settings.database)
        try:
            return await status(database, self.settings)
        finally:
            await database.aclose()

    def execute(self, statement: str) -> None:
        """Run with ``@ago(s)``, ``@in(s)`` for a time and ``@bytes(text)`` for bytes: the dialects differ."""
        now_ms = "cast((julianday('now') - 2440587.5) * 86400000 as integer)"
        for sign, word in (("-", "ago"), ("+", "in")):
            time = rf"clock_timestamp() {sign} interval '\1 s'" if self.postgres else rf"{now_ms} {sign} \1 * 1000"
            statement = re.sub(rf"@{word}\((\d+)\)", time, statement)
        statement = re.sub(
            r"@bytes\((\w+)\)", r"convert_to('\1', 'UTF8')" if self.postgres else r"cast('\1' as blob)", statement
        )
        if self.postgres:
            with psycopg.connect(self.settings.database.url) as connection:
                connection.execute(statement.encode())
        else:
            file = sqlite3.connect(self.settings.database.url.removeprefix("sqlite:///"), isolation_level=None)
            file.execute(statement)
            file.close()

    def append(self, event_id: str, age_s: int, settled: bool = False) -> None:
        self.execute(
            "insert into relevo_outbox (event_id, bucket, topic, type, created_at, settled_at) values "
            f"('{event_id}', 1, 'shop', 'shop.sold', @ago({age_s}), {'@ago(0)' if settled else 'null'})"
        )


DEAD = "00000000-0000-7000-8000-0000000000bb"


async def test_an_empty_installation_has_nothing_to_warn_about(installed: Installed) -> None:
    report = await installed.status()
    assert (report.pending.count, report.pending.oldest_age_s, report.warnings) == (0, None, [])
    newest = migrating.migrations("postgresql")[-1].number
    source = "log" if installed.settings.database.url.startswith("postgresql") else "mark"
    assert (report.lanes.total, report.lanes.free, report.schema_version, report.source) == (64, 64, newest, source)
    assert report.relays == report.consumers == report.held == report.destinations_paused == []


async def test_pending_counts_what_is_not_settled_and_its_age_by_the_database_clock(installed: Installed) -> None:
    """Without a relay that is worth a warning, with the command that helps."""
    installed.append(ONE, 500, settled=True)
    installed.append(TWO, 90)
    installed.append(THREE, 10)
    report = await installed.status()
    assert report.pending.count == 2
    assert report.pending.oldest_age_s is not None
    assert 89 < report.pending.oldest_age_s < 150
    assert any("no relay is running" in warning and "relevo relay" in warning for warning in report.warnings)


async def test_a_count_stops_at_its_cap(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting a backlog of a million would cost more than it says."""
    monkeypatch.setattr(status_module, "COUNT_CAP", 2)
    for age_s, event_id in enumerate((ONE, TWO, THREE)):
        installed.append(event_id, age_s)
    report = await installed.status()
    assert (report.pending.count, report.pending.count_capped) == (2, True)


async def test_relays_show_their_lanes_and_the_dead_do_not_count(installed: Installed) -> None:
    """A lane whose lease ran out is free, whoever its row still names."""
    process = "insert into relevo_process (process_id, role, name, host, pid, version, expires_at) values "
    installed.execute(f"{process} ('{RELAY}', 'relay', 'r1', 'box', 7, '0.1', @in(60))")
    installed.execute(f"{process} ('{ONE}', 'relay', 'dead', 'box', 8, '0.1', @ago(60))")
    installed.execute(f"update relevo_lane set holder = '{RELAY}', epoch = lane, expires_at = @in(60) where lane < 40")
    installed.execute(f"update relevo_lane set holder = '{ONE}', epoch = 9, expires_at = @ago(60) where lane >= 40")
    report = await installed.status()
    (relay,) = report.relays
    assert (relay.name, relay.host, relay.pid, relay.version) == ("r1", "box", 7, "0.1")
    assert (relay.lanes, relay.epoch_min, relay.epoch_max) == (40, 0, 39)
    assert report.lanes.free == 24
    assert any("24 of 64 lanes are free" in warning for warning in report.warnings)


async def test_paused_destinations_and_held_keys_are_counted_with_what_waits_behind(installed: Installed) -> None:
    """FAILURES row 15: a parked key says so, with the number of messages behind it."""
    installed.execute(
        "insert into relevo_process (process_id, role, name, host, pid, version, expires_at) values "
        f"('{RELAY}', 'relay', 'r', 'h', 1, '0', @in(60))"
    )
    installed.execute(
        "insert into relevo_destination (topic, process_id, reason, since) values "
        f"('shop', '{RELAY}', 'no leader', @ago(30)), ('gone', '{DEAD}', 'it ended long ago', @ago(30))"
    )
    for key, state, reason in (("a", "parked", "too large"), ("b", "parked", "bad"), ("c", "waiting", "later")):
        installed.execute(
            "insert into relevo_held_key (side, topic, key, bucket, state, reason, since) "
            f"values ('relay', 'shop', @bytes({key}), 1, '{state}', '{reason}', @ago(120))"
        )
    for position, key in enumerate("aaab"):
        installed.execute(
            "insert into relevo_held_message (side, topic, held_key, event_id, position, bucket, kind, type, "
            "schema_version, content_type, created_at) values ('relay', 'shop', "
            f"@bytes({key}), '00000000-0000-7000-8000-0000000000{position + 16:x}', {position}, 1, 'event', 't', 1, "
            "'application/json', @ago(1))"
        )
    report = await installed.status()
    (paused,) = report.destinations_paused
    assert (paused.topic, paused.reason) == ("shop", "no leader")
    assert 29 < paused.paused_s < 90
    assert [(held.side, held.state, held.keys, held.messages) for held in report.held] == [
        ("relay", "parked", 2, 4),
        ("relay", "waiting", 1, 0),
    ]
    assert 119 < report.held[0].oldest_age_s < 180
    assert any("2 keys are parked" in warning for warning in report.warnings)


async def test_two_processes_of_a_consumer_with_different_topics_are_a_warning(installed: Installed) -> None:
    """Normal for the minutes of a rolling deploy; a mistake if it stays (HARD 19)."""
    lag = '{"lag": {"shop/0": 1, "shop/1": 2}}'
    topics: Any = ("{a,b}", "{a}") if installed.postgres else ('["a", "b"]', '["a"]')
    for process_id, listed in zip((ONE, TWO), topics, strict=True):
        installed.execute(
            "insert into relevo_process (process_id, role, name, host, pid, version, topics, detail, expires_at) "
            f"values ('{process_id}', 'consumer', 'billing', 'box', 7, '0.1', '{listed}', '{lag}', @in(60))"
        )
    report = await installed.status()
    assert sorted(consumer.topics for consumer in report.consumers) == [["a"], ["a", "b"]]
    assert [consumer.lag for consumer in report.consumers] == [3, 3]
    assert any("billing" in warning and "different topic lists" in warning for warning in report.warnings)


async def test_missing_and_older_tables_are_an_error(installed: Installed) -> None:
    installed.execute("update relevo_meta set schema_version = 1")
    with pytest.raises(SchemaError, match="relevo migrate"):
        await installed.status()
    installed.settings.database.prefix = "other_"
    with pytest.raises(SchemaError, match="relevo migrate"):
        await installed.status()


async def test_a_long_transaction_is_named(pg_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAILURES row 6: some session is idle in transaction. Its pid, age and query are named, because vacuum suffers."""
    settings = load(environ={}, overrides={"database.url": pg_database})
    migrate(settings)
    with psycopg.connect(pg_database) as forgotten:
        forgotten.execute("select 'forgotten', " + repr("x" * 500))
        monkeypatch.setattr(status_module, "LONG_TRANSACTION_S", 0.0)
        report = await Installed(settings).status()
        (transaction,) = report.long_transactions
        assert transaction.pid == forgotten.info.backend_pid
        assert transaction.state == "idle in transaction"
        assert transaction.query.startswith("select 'forgotten'")
        assert len(transaction.query) <= 200
        assert any(str(transaction.pid) in warning and "vacuum" in warning for warning in report.warnings)
    monkeypatch.setattr(status_module, "LONG_TRANSACTION_S", 60.0)
    assert (await Installed(settings).status()).long_transactions == []


def test_the_cost_does_not_depend_on_what_was_settled_long_ago(pg_database: str) -> None:
    """Plans of the two queries on the outbox: the partial index and nothing else, also with statistics that say that
    half of the rows are unsettled."""
    settings = load(environ={}, overrides={"database.url": pg_database, "relay.source": "mark"})
    migrate(settings)
    catalog = catalog_of(settings)
    with psycopg.connect(pg_database) as connection:
        connection.execute(
            "insert into relevo_outbox (event_id, bucket, topic, type, settled_at) select gen_random_uuid(), 1, 'a', "
            "'a.sold', case when n % 2 = 0 then now() end from generate_series(1, 20000) as n"
        )
        connection.execute("analyze relevo_outbox")
        connection.execute("update relevo_outbox set settled_at = now() where seq < 19990")
        for name in ("status.pending", "status.oldest"):
            query = catalog.text(name).replace(":cap", "100001")
            plan = "\n".join(row[0] for row in connection.execute(f"explain {query}".encode()))
            assert "relevo_outbox_p0_seq_idx" in plan, plan  # the partition's part of relevo_outbox_unsettled
            assert "Seq Scan" not in plan and "Sort" not in plan, plan
