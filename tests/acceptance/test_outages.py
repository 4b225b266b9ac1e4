"""The broker is away for two minutes under load, for real. ``make soak``; each prints its figures.

The short forms are in ``test_ledger.py``, half an hour by a simulated clock in ``test_long_outages.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo.brokers import broker_for
from tests.support.ledger.outage import Figures, Load, Outage, play
from tests.support.ledger.outages import Frozen, Killed, Locked
from tests.support.ledger.run import Plan
from tests.support.matrix.wire import READER, declare
from tests.support.private_kafka import PrivateKafka, private_kafka
from tests.support.private_rabbitmq import PrivateRabbitMQ, private_rabbitmq

pytestmark = pytest.mark.soak

FIRST_MAX_S = 5.0
"""Generous: the machine may be busy. What is meant is below a second, and the figure is printed."""
SLOWER_MAX = 0.4
"""The drain's rate over the normal one; likewise."""
PROBES = "outage.probe"


@pytest.fixture
def own_kafka(kafka_url: str, tmp_path: Path) -> Iterator[PrivateKafka]:
    """A Kafka that this test may stop (``kafka_url``: so that a missing server fails or skips as usual)."""
    with private_kafka(tmp_path / "kafka", 24_000 + int.from_bytes(secrets.token_bytes(1), "big") * 10) as kafka:
        asyncio.run(broker_for(kafka.url).ensure_topics([PROBES]))
        yield kafka


@pytest.fixture
def own_rabbitmq(rabbitmq_url: str, tmp_path: Path) -> Iterator[PrivateRabbitMQ]:
    with private_rabbitmq(tmp_path / "rabbitmq", 27_000 + int.from_bytes(secrets.token_bytes(1), "big") * 10) as own:
        yield own


def run(
    what: str,
    outage: Outage,
    database: str,
    broker: str,
    options: dict[str, Any],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    load: Load | None = None,
) -> Figures:
    topic = f"ledger.{secrets.token_hex(6)}"
    declare(broker, options, topic, ["books", READER])
    plan = Plan(
        database=database,
        broker=broker,
        broker_options=", ".join(f'"{name}" = {value}' for name, value in options.items()),
        writers=2,
        lease_s=9.0,
        patience_s=600.0,
        topic=topic,
    )
    with capsys.disabled():
        figures = play(plan, folder, outage, load or Load(), options)
        print(f"\n{what}, away for {(load or Load()).seconds:.0f} s: {figures}")
    figures.check()
    assert figures.first_s < FIRST_MAX_S, str(figures)
    assert figures.drain_rate > figures.normal_rate * SLOWER_MAX, str(figures)
    return figures


KAFKA = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1500}
RABBITMQ = {"member_timeout_s": 2.0}


def test_kafka_killed(
    pg_database: str, own_kafka: PrivateKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES row 16: Kafka dies by SIGKILL and is started again two minutes later, two relays, leases of 9 s."""
    run("Kafka killed", Killed(own_kafka, PROBES), pg_database, own_kafka.url, KAFKA, tmp_path, capsys)


def test_kafka_frozen(
    pg_database: str, own_kafka: PrivateKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES row 16: Kafka's process stands still for two minutes: it accepts connections and never answers."""
    run("Kafka frozen", Frozen(own_kafka, PROBES), pg_database, own_kafka.url, KAFKA, tmp_path, capsys)


def test_rabbitmq_killed(
    pg_database: str, own_rabbitmq: PrivateRabbitMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES row 16: as above, on queues."""
    run("RabbitMQ killed", Killed(own_rabbitmq, PROBES), pg_database, own_rabbitmq.url, RABBITMQ, tmp_path, capsys)


def test_rabbitmq_frozen(
    pg_database: str, own_rabbitmq: PrivateRabbitMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES row 16: as above, on queues."""
    run("RabbitMQ frozen", Frozen(own_rabbitmq, PROBES), pg_database, own_rabbitmq.url, RABBITMQ, tmp_path, capsys)


def test_embedded_locked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FAILURES row 16: somebody's transaction holds the embedded broker's file for two minutes."""
    path = tmp_path / "broker.db"
    run(
        "embedded broker locked",
        Locked(path),
        f"sqlite:///{tmp_path / 'app.db'}",
        f"embedded:{path}",
        {"lease_s": 2},
        tmp_path,
        capsys,
        Load(stock=1_500, per_s=15.0),
    )
