"""The ledger with faults injected at random statements and connections all the time, beside kills.

No process may end by itself (``LedgerRun.play`` looks), and the account must be even. Every run prints what it
injected.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.test_ledger import on_kafka, on_rabbitmq
from tests.support.hanging import hanging
from tests.support.ledger.account import Account, take_account
from tests.support.ledger.faults import Faults, make_worker, workers_url, writers_url
from tests.support.ledger.run import LedgerRun, Plan
from tests.support.private_kafka import PrivateKafka, private_kafka
from tests.support.private_postgres import PrivatePostgres, private_postgres

STATEMENTS_FAIL = 0.01
"""The share of writing statements of relays and consumers that fail."""
EVERY_S = 0.4
"""About how often another fault is injected."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrivatePostgres]:
    with private_postgres(tmp_path / "postgres") as server:
        yield server


@pytest.fixture
def own_kafka(kafka_url: str, tmp_path: Path) -> Iterator[PrivateKafka]:
    with private_kafka(tmp_path / "kafka", 24_000 + int.from_bytes(secrets.token_bytes(1), "big") * 10) as kafka:
        yield kafka


def freezing(kafka: PrivateKafka) -> Callable[[float], None]:
    def freeze(seconds: float) -> None:
        kafka.freeze()
        threading.Event().wait(seconds)  # the fault lasts so long
        kafka.thaw()

    return freeze


def play(
    server: PrivatePostgres,
    make: Callable[[str], Plan],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    freeze: Callable[[float], None] | None = None,
) -> Account:
    database = writers_url(server.url)
    plan = make(database)
    with hanging(server.url) as postgres, hanging(plan.broker) as broker:
        proxies = {"database": postgres}
        plan = with_workers(plan, workers_url(server.url, postgres.port))
        if freeze is None:
            plan = with_broker(plan, broker.port)
            proxies["broker"] = broker
        with LedgerRun(plan, folder) as run:
            make_worker(database, STATEMENTS_FAIL)
            faults = Faults(database, proxies, every_s=EVERY_S, seed=plan.seed, freeze=freeze)
            began = time.monotonic()

            def look() -> None:
                assert faults.failure is None, faults.failure
                if not faults.started and take_account(database).effects > 20:
                    faults.start()
                if not any(writer.running for writer in run.writers) and sum(run.kills.values()) >= plan.kills:
                    faults.stop()

            try:
                account = run.play(meanwhile=look)
            except AssertionError as error:
                raise AssertionError("\n".join([str(error), faults.report(), *run.tails()])) from error
            finally:
                faults.stop()
            report = faults.report()
    with capsys.disabled():
        print(f"\n{run.report(account)}\n{report}; {time.monotonic() - began:.0f} s")
    assert account.holds, "\n".join([str(account), report, *run.tails()])
    assert sum(faults.injected.values()) > 0
    return account


def with_workers(plan: Plan, url: str) -> Plan:
    return Plan(**{**vars(plan), "workers_database": url})


def with_broker(plan: Plan, port: int) -> Plan:
    parts = urlsplit(plan.broker)
    userinfo, at, _ = parts.netloc.rpartition("@")
    return Plan(**{**vars(plan), "broker": parts._replace(netloc=f"{userinfo}{at}127.0.0.1:{port}").geturl()})


@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize("source", ["mark", "log"])
def test_ledger_with_faults_on_rabbitmq(
    source: str, server: PrivatePostgres, rabbitmq_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Short form: statements fail, connections are cut, silent and late, the database is read-only, full or locked; and
    6 kills."""
    sizes = {"transactions": 250, "kills": 6, "source": source, "patience_s": 240.0}
    play(server, lambda database: on_rabbitmq(database, rabbitmq_url, **sizes), tmp_path, capsys)


@pytest.mark.soak
@pytest.mark.parametrize("source", ["mark", "log", "wal"])
def test_full_ledger_with_faults_on_kafka(
    source: str, server: PrivatePostgres, own_kafka: PrivateKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The full form: at least 20,000 events, with Kafka frozen now and then."""
    sizes = {"transactions": 4500, "kills": 24, "kill_every_s": 3.0, "source": source, "patience_s": 1800.0}
    account = play(
        server, lambda database: on_kafka(database, own_kafka.url, **sizes), tmp_path, capsys, freezing(own_kafka)
    )
    assert account.committed >= 20_000


@pytest.mark.soak
@pytest.mark.parametrize("batch", [100, 1], ids=["batches", "one by one"])
def test_full_ledger_with_faults_on_rabbitmq(
    batch: int, server: PrivatePostgres, rabbitmq_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The full form on queues, with connections to the broker cut, silent and late as well."""
    sizes = {"transactions": 4500, "kills": 24, "kill_every_s": 3.0, "source": "log", "patience_s": 1800.0}
    account = play(server, lambda database: on_rabbitmq(database, rabbitmq_url, batch=batch, **sizes), tmp_path, capsys)
    assert account.committed >= 20_000
