"""The ledger: real writers, relays and consumers, killed with SIGKILL at random, and the account at the end.

``make test`` runs a short form, ``make soak`` the full one; longer outages are in ``test_outages.py``. Every run prints
its counts. One run has a relay that marks before the broker confirmed, and must fail: a ledger that cannot notice
proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo.brokers import broker_for
from tests.support.ledger.account import Account, take_account
from tests.support.ledger.app import connect, execute
from tests.support.ledger.broken_relay import HAND_OVER
from tests.support.ledger.run import LedgerRun, Plan
from tests.support.matrix.wire import READER, Wire, read
from tests.support.private_kafka import PrivateKafka, private_kafka
from tests.support.private_rabbitmq import PrivateRabbitMQ, private_rabbitmq
from tests.support.waiting import eventually_sync

KAFKA_OPTIONS = '"session.timeout.ms" = 6000, "heartbeat.interval.ms" = 1500'


def on_kafka(database: str, broker: str, **sizes: object) -> Plan:
    topic = f"ledger.{secrets.token_hex(6)}"
    asyncio.run(broker_for(broker).ensure_topics([topic]))
    return Plan(database=database, broker=broker, broker_options=KAFKA_OPTIONS, topic=topic, **sizes)  # type: ignore[arg-type]


def on_rabbitmq(database: str, url: str, **sizes: object) -> Plan:
    topic = f"ledger.{secrets.token_hex(6)}"

    async def prepare() -> None:
        broker = broker_for(url)
        await broker.ensure_topics([topic])
        # A queue keeps messages from its declaration on; before that they would be unroutable.
        for consumer in ("books", READER):
            await (await broker.subscribe(consumer, [topic])).aclose()

    asyncio.run(prepare())
    return Plan(database=database, broker=url, broker_options="member_timeout_s = 2.0", topic=topic, **sizes)  # type: ignore[arg-type]


def on_embedded(folder: Path, **sizes: object) -> Plan:
    return Plan(
        database=f"sqlite:///{folder / 'app.db'}",
        broker=f"embedded:{folder / 'broker.db'}",
        broker_options="lease_s = 2",
        **sizes,  # type: ignore[arg-type]
    )


def play(plan: Plan, folder: Path, capsys: pytest.CaptureFixture[str]) -> Account:
    with LedgerRun(plan, folder) as run:
        account = run.play()
    with capsys.disabled():
        print(f"\n{run.report(account)}")
    assert account.holds, "\n".join([str(account), *run.tails()])
    assert sum(run.kills.values()) == plan.kills
    return account


@pytest.mark.parametrize("batch", [100, 1], ids=["batches", "one by one"])
def test_ledger_on_sqlite_and_the_embedded_broker(
    batch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES rows 1, 3, 14, 16, 32: short form on the embedded default, 6 kills."""
    play(on_embedded(tmp_path, writers=2, transactions=400, kills=6, batch=batch), tmp_path, capsys)


@pytest.mark.xdist_group("heavy")
def test_ledger_on_postgres_and_kafka(
    pg_database: str, kafka_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES rows 1, 2, 3, 11, 14, 32: 4 writers with rollbacks and late commits, 2 relays, 2 consumers, 6 kills."""
    account = play(on_kafka(pg_database, kafka_url, transactions=500, kills=6), tmp_path, capsys)
    assert account.committed > 2000


@pytest.mark.xdist_group("heavy")
def test_ledger_of_the_source_log(
    pg_database: str, kafka_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES rows 1, 2, 3, 11, 14, 32: as above, read by snapshot windows."""
    account = play(on_kafka(pg_database, kafka_url, transactions=300, kills=6, source="log"), tmp_path, capsys)
    assert account.committed > 1200


@pytest.mark.xdist_group("heavy")
def test_ledger_on_postgres_and_rabbitmq(
    pg_database: str, rabbitmq_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES rows 1, 2, 3, 11, 14, 32: as above, on queues."""
    account = play(on_rabbitmq(pg_database, rabbitmq_url, transactions=500, kills=6), tmp_path, capsys)
    assert account.committed > 2000


@pytest.mark.xdist_group("heavy")
def test_ledger_on_postgres_alone(pg_database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FAILURES rows 1, 2, 3, 11, 14, 32: no broker, consumers read the outbox; relays do the chores, and are killed as
    well. Nothing is ever sent into the outbox again."""
    plan = Plan(
        *(pg_database, pg_database, "lease_s = 2"), source="log", relays=1, consumers=3, transactions=300, kills=8
    )
    account = play(plan, tmp_path, capsys)
    assert account.committed > 1200
    with contextlib.closing(connect(pg_database)) as connection:
        (count,) = execute(
            connection, "select count(*), count(distinct event_id), count(settled_at) from relevo_outbox"
        )
    assert count[0] == count[1] and count[2] == 0


def test_the_ledger_notices_a_relay_that_marks_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HARD 24: a deliberately broken relay, killed between its mark and its send, loses events, and it shows. A writer
    begins after the kill: what it changes comes behind what was lost, and the run ends as soon as that is seen."""
    plan = on_embedded(
        tmp_path,
        writers=2,
        relays=1,
        consumers=1,
        transactions=300,
        kills=0,
        relay_module="tests.support.ledger.broken_relay",
    )
    hand_over = tmp_path / "hand-over"
    monkeypatch.setenv(HAND_OVER, str(hand_over))
    with LedgerRun(plan, tmp_path) as run:
        (relay,) = run.relays
        late = run.writer("late", seed=900, transactions=plan.transactions)

        def kill_when_marked() -> None:
            """What it had marked by then is never sent; the next one sends all it marks."""
            if not hand_over.exists() and _marked(plan.database):
                relay.kill()
                hand_over.touch()
                relay.start()
                late.start()
                run.writers.append(late)

        account = run.play(meanwhile=kill_when_marked)
    assert hand_over.exists(), "the broken relay marked nothing"
    with capsys.disabled():
        print(f"\nbroken relay: {account}")
    assert account.lost > 0
    assert not account.holds


def _marked(database: str) -> bool:
    connection = connect(database)
    try:
        return bool(execute(connection, "select 1 from relevo_outbox where settled_at is not null limit 1"))
    finally:
        connection.close()


@pytest.fixture
def own_kafka(kafka_url: str, tmp_path: Path) -> Iterator[PrivateKafka]:
    """A Kafka that this test may stop (``kafka_url``: so that a missing server fails or skips as usual)."""
    with private_kafka(tmp_path / "kafka", 24_000 + int.from_bytes(secrets.token_bytes(1), "big") * 10) as kafka:
        yield kafka


@pytest.fixture
def own_rabbitmq(rabbitmq_url: str, tmp_path: Path) -> Iterator[PrivateRabbitMQ]:
    with private_rabbitmq(
        tmp_path / "rabbitmq", 27_000 + int.from_bytes(secrets.token_bytes(1), "big") * 10
    ) as rabbitmq:
        yield rabbitmq


def outage(plan: Plan, folder: Path, server: PrivateKafka | PrivateRabbitMQ) -> Account:
    """The broker dies in the middle; while it is away one relay stands still until its lanes have gone to the other.

    Nothing may be parked, no attempt spent; it must drain by itself, and of each relay at most what was under way may
    be on the wire twice.
    """
    with LedgerRun(plan, folder) as run:
        frozen = run.relays[0]

        def away_and_back() -> None:
            eventually_sync(lambda: take_account(plan.database).effects > 200, what="events flow", timeout_s=60)
            before = take_account(plan.database)
            server.kill()
            frozen.send(signal.SIGSTOP)
            eventually_sync(lambda: _owners(plan.database) == 1, what="one relay has every lane", timeout_s=60)
            during = take_account(plan.database)
            assert during.parked == 0 and during.attempts == before.attempts
            server.start()
            frozen.send(signal.SIGCONT)

        failure: list[BaseException] = []

        def guarded() -> None:
            try:
                away_and_back()
            except BaseException as error:  # reported below, in the main thread
                failure.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        started = time.monotonic()
        account = run.play()
        thread.join()
        assert not failure, failure
        assert account.holds, "\n".join([str(account), *run.tails()])
        messages = read(plan.broker, {}, plan.topic, account.committed, patience_s=120)
    times = Counter(message.event_id for message in messages)
    doubled = sum(count > 1 for count in times.values())
    print(f"\noutage: {account}; {doubled} events twice on the wire; {time.monotonic() - started:.0f} s in all")
    assert len(times) == account.committed
    assert doubled <= plan.doubles_max
    assert not Wire.of(messages).swapped
    return account


def _owners(database: str) -> int:
    with contextlib.closing(connect(database)) as connection:
        return int(execute(connection, "select count(distinct holder) from relevo_lane")[0][0])


@pytest.mark.xdist_group("heavy")
def test_kafka_stopped_in_the_middle(
    pg_database: str, own_kafka: PrivateKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES rows 11, 16 (short form): Kafka is away under load for longer than a lease that runs out meanwhile."""
    plan = on_kafka(pg_database, own_kafka.url, transactions=400, kills=0, lease_s=6.0, patience_s=150.0)
    with capsys.disabled():
        account = outage(plan, tmp_path, own_kafka)
    assert account.attempts == 0


@pytest.mark.xdist_group("heavy")
def test_rabbitmq_stopped_in_the_middle(
    pg_database: str, own_rabbitmq: PrivateRabbitMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAILURES rows 11, 16 (short form): RabbitMQ is away under load for longer than a lease, which ends meanwhile."""
    plan = on_rabbitmq(pg_database, own_rabbitmq.url, transactions=400, kills=0, lease_s=6.0, patience_s=150.0)
    with capsys.disabled():
        account = outage(plan, tmp_path, own_rabbitmq)
    assert account.attempts == 0


@pytest.mark.soak
@pytest.mark.parametrize("batch", [100, 1], ids=["batches", "one by one"])
def test_full_ledger_on_postgres_and_rabbitmq(
    batch: int, pg_database: str, rabbitmq_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The full form on queues."""
    sizes = {"transactions": 4500, "kills": 24, "kill_every_s": 2.5, "patience_s": 900.0, "batch": batch}
    plan = on_rabbitmq(pg_database, rabbitmq_url, **sizes)
    assert play(plan, tmp_path, capsys).committed >= 20_000


@pytest.mark.soak
@pytest.mark.parametrize("batch", [100, 1], ids=["batches", "one by one"])
def test_full_ledger_on_postgres_and_kafka(
    batch: int, pg_database: str, kafka_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The full form: at least 20,000 events, at least 20 kills of relays and consumers."""
    sizes = {"transactions": 4500, "kills": 24, "kill_every_s": 2.5, "patience_s": 900.0, "batch": batch}
    plan = on_kafka(pg_database, kafka_url, **sizes)
    assert play(plan, tmp_path, capsys).committed >= 20_000


@pytest.mark.soak
def test_full_ledger_on_sqlite_and_the_embedded_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = on_embedded(tmp_path, writers=3, transactions=6000, kills=24, kill_every_s=2.0, patience_s=900.0)
    assert play(plan, tmp_path, capsys).committed >= 20_000
