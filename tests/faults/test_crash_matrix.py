"""The crash matrix: at every probe point a real process is killed, frozen past its lease, or cut off, and afterwards
the ledger holds: everything committed took effect once, in order per key, and what is on the wire twice is explained.

A new point in ``relevo.runtime.probes.KNOWN`` has its rows here by itself. It fails until a scenario reaches it:
``tests/support/matrix/scenarios.py``. ``make test`` runs each point once by SIGKILL on SQLite and the embedded broker,
and a few rows of the rest, others for every commit; ``make soak`` the full product.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.matrix.cases import EMBEDDED, Case, called, kills, product, shard
from tests.support.matrix.play import play
from tests.support.matrix.report import NAME
from tests.support.matrix.system import LEASE_S, Stack

Record = Callable[[str, object], None]


def build(stack: str, folder: Path, request: pytest.FixtureRequest) -> Stack:
    """Databases, topics and files of a row's own."""
    topic = f"ledger.{secrets.token_hex(6)}"
    if stack == EMBEDDED:
        database, broker = f"sqlite:///{folder / 'app.db'}", f"embedded:{folder / 'broker.db'}"
        return Stack(stack, database, broker, topic, {"lease_s": LEASE_S})
    database = request.getfixturevalue("pg_database")
    if stack == "postgres-kafka":
        options = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1500}
        return Stack(stack, database, request.getfixturevalue("kafka_url"), topic, options, settles_s=6.0)
    return Stack(stack, database, request.getfixturevalue("rabbitmq_url"), topic, {})


def row(
    case: Case, folder: Path, request: pytest.FixtureRequest, record: Record, batch: int = 100, source: str = "mark"
) -> None:
    if case.not_applicable is not None:
        record(NAME, (str(case), case.not_applicable, ""))
        pytest.skip(case.not_applicable)
    started = time.monotonic()
    result = "does not hold"
    try:
        result = play(case, replace(build(case.stack, folder, request), batch=batch, source=source), folder)
    finally:
        record(NAME, (str(case), result, f"{time.monotonic() - started:.1f}s"))


@pytest.mark.parametrize("case", kills(), ids=str)
def test_killed_at_every_point(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, record_property: Record
) -> None:
    """FAILURES rows 14, 32 and HARD 24: SIGKILL at every named point, on SQLite and the embedded broker."""
    row(case, tmp_path, request, record_property)


@pytest.mark.parametrize("case", shard(), ids=str)
def test_a_part_of_the_rest(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, record_property: Record
) -> None:
    """FAILURES rows 11, 14, 31, 32: killed, frozen or cut off, on any stack; another selection for every commit."""
    row(case, tmp_path, request, record_property)


@pytest.mark.soak
@pytest.mark.parametrize("case", product(), ids=str)
def test_the_full_product(case: Case, tmp_path: Path, request: pytest.FixtureRequest, record_property: Record) -> None:
    """Every point, every action, every stack."""
    row(case, tmp_path, request, record_property)


@pytest.mark.soak
@pytest.mark.parametrize("case", [case for case in product() if case.part == "consumer"], ids=str)
def test_consumers_without_batches(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, record_property: Record
) -> None:
    """The rows above are of consumers that handle batches, as they do by default: here each message has its own
    transaction."""
    row(case, tmp_path, request, record_property, batch=1)


OF_LOG = [Case("relay.confirmed", "kill", "postgres-kafka"), Case("relay.sending", "freeze", "postgres-kafka")]


@pytest.mark.parametrize("case", OF_LOG, ids=str)
def test_relays_that_read_by_position(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, record_property: Record
) -> None:
    """FAILURES rows 11 and 14 with the source ``log``: killed before the cursor moved, frozen past the lease."""
    row(case, tmp_path, request, record_property, source="log")


@pytest.mark.soak
@pytest.mark.parametrize("case", [case for case in product() if case.part == "relay"], ids=str)
def test_relays_that_read_by_position_at_every_point(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, record_property: Record
) -> None:
    """Every point of the relay, every action, every stack, with the source ``log``."""
    row(case, tmp_path, request, record_property, source="log")


def test_the_matrix_knows_which_points_are_passed() -> None:
    """What is skipped as "not called yet" is read off the source; a reader that finds nothing would skip everything."""
    assert {"relay.taken", "consumer.handled"} <= called()
    assert len(called()) >= 20


def test_the_selection_follows_the_commit() -> None:
    """The same commit has the same rows (all workers of a run collect alike), another one others."""
    assert shard("a") == shard("a")
    assert shard("a") != shard("b")
    assert not set(shard("a")) & set(kills())
