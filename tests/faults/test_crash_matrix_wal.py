"""The crash matrix over relays that read the write-ahead log: every point of the relay, killed, frozen or cut off, and
every point of a move back to `mark`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.test_crash_matrix import build
from tests.support.matrix.cases import Case, product
from tests.support.matrix.play import play
from tests.support.matrix.report import NAME
from tests.support.private_postgres import PrivatePostgres
from tests.support.wal import wal_database, wal_server  # noqa: F401 - a fixture

HANDED_OVER = "relay.released"
"""Not passed here: one relay reads, and hands nothing over while another one runs beside it."""
CASES = [
    case
    for case in product()
    if case.part == "relay" and case.point != HANDED_OVER and case.stack.startswith("postgres")
]
MOVES = [case for case in product(()) if case.part == "source" and case.stack.startswith("postgres")]
ONE = Case("relay.settled", "kill", "postgres-kafka")
"""Settled in memory, not saved yet: the point that only this source has."""


def row(case: Case, folder: Path, request: pytest.FixtureRequest, record: Callable[[str, object], None]) -> None:
    if case.not_applicable is not None:
        record(NAME, (str(case), case.not_applicable, ""))
        pytest.skip(case.not_applicable)
    started, result = time.monotonic(), "does not hold"
    with wal_database(request.getfixturevalue("wal_server")) as database:
        try:
            stack = replace(build(case.stack, folder, request), database=database, source="wal")
            result = play(case, stack, folder)
        finally:
            record(NAME, (str(case), result, f"{time.monotonic() - started:.1f}s"))


@pytest.mark.soak  # a quarter of a minute: the table is told every ten seconds
@pytest.mark.xdist_group("wal")
def test_killed_before_the_position_is_saved(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    wal_server: PrivatePostgres,  # noqa: F811
) -> None:
    """FAILURES rows 14 and 23: what a crash of this source repeats is a duplicate, never a loss."""
    row(ONE, tmp_path, request, record_property)


@pytest.mark.soak
@pytest.mark.xdist_group("wal")
@pytest.mark.parametrize("case", [*CASES, *MOVES], ids=str)
def test_relays_on_the_write_ahead_log(
    case: Case,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    wal_server: PrivatePostgres,  # noqa: F811
) -> None:
    """FAILURES rows 11, 14 and 23, HARD 8: every point of a relay and of a move, and every action, on Kafka and
    RabbitMQ."""
    row(case, tmp_path, request, record_property)
