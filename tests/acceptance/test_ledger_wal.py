"""The ledger over the source ``wal``: relays that read the write-ahead log, killed like all others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_ledger import on_kafka, play
from tests.support.private_postgres import PrivatePostgres
from tests.support.wal import wal_database, wal_server  # noqa: F401 - a fixture


@pytest.fixture
def database(wal_server: PrivatePostgres) -> Iterator[str]:  # noqa: F811
    with wal_database(wal_server) as url:
        yield url


@pytest.mark.xdist_group("wal")
def test_ledger_on_the_write_ahead_log(
    database: str, kafka_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES rows 1, 2, 3, 11, 14, 23, 32: short form: of 2 relays one reads at a time, 6 kills."""
    plan = on_kafka(database, kafka_url, transactions=300, kills=6, source="wal")
    assert play(plan, tmp_path, capsys).committed > 1000


@pytest.mark.soak
def test_full_ledger_on_the_write_ahead_log(
    database: str, kafka_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The full form: at least 20,000 events, at least 20 kills of relays and consumers."""
    plan = on_kafka(database, kafka_url, transactions=4500, kills=24, kill_every_s=2.5, patience_s=900.0, source="wal")
    assert play(plan, tmp_path, capsys).committed >= 20_000
