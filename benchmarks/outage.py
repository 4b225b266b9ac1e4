"""How long from the broker's return to the first event, and to the empty backlog?

``python -m benchmarks.outage [--backlog 50000] [--away 20] [--runs 3] [--brokers kafka,rabbitmq]
[--how killed,frozen]``: PostgreSQL, source ``mark`` (its rows tell when they were settled), one relay with default
settings, and a broker of the benchmark's own. It is killed
(SIGKILL) or frozen (SIGSTOP) for that many seconds while the backlog is written, 1,000 keys, 300 bytes. It is back when
another client, which tries every 50 ms, was served. The first event: stored at the broker, as a third client sees it,
and settled in the outbox, with its whole page. The normal rate is the same relay's with an equal backlog and the broker
there. Alternating runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks import scratch
from benchmarks.contestant import clean
from benchmarks.measure import machine, spread, table
from relevo.ops.migrate import migrate
from relevo.settings import load
from tests.support.ledger.outages import Frozen, Killed, first_stored
from tests.support.private_kafka import PrivateKafka, private_kafka
from tests.support.private_rabbitmq import PrivateRabbitMQ, private_rabbitmq

KEYS = 1_000
OPEN = "select count(*) from relevo_outbox where settled_at is null"
SPAN = (
    "select extract(epoch from min(settled_at))::float8, extract(epoch from max(settled_at))::float8 "
    "from relevo_outbox where seq > %s"
)


@dataclass(frozen=True)
class Result:
    """Seconds from the broker's return; events per second."""

    stored_s: float
    settled_s: float
    empty_s: float
    drain_rate: float
    normal_rate: float


def run(database: str, server: PrivateKafka | PrivateRabbitMQ, how: str, backlog: int, away_s: float) -> Result:
    with scratch.database(database) as url, tempfile.TemporaryDirectory() as folder:
        topic = f"bench.{secrets.token_hex(4)}"
        asyncio.run(scratch.declare(server.url, topic))
        config = Path(folder) / "relevo.toml"
        config.write_text(
            f'[database]\nurl = "{url}"\n[broker]\nurl = "{server.url}"\n[relay]\nsource = "mark"\n', "utf-8"
        )
        migrate(load(config, environ={}))
        outage = (Killed if how == "killed" else Frozen)(server, topic)
        with psycopg.connect(url, autocommit=True) as connection:
            scratch.fill(connection, topic, backlog, KEYS)
            with _relay(config):
                _empty(connection)
                first, last = _span(connection, 0)
                normal_rate = backlog / (last - first)
                (before,) = connection.execute("select max(seq) from relevo_outbox").fetchone() or (0,)
                outage.away()
                scratch.fill(connection, topic, backlog, KEYS)
                time.sleep(away_s)  # the outage
                back_at = outage.back()
                stored_at = asyncio.run(first_stored(server.url, topic, scratch.CONSUMER, backlog + 1))
                _empty(connection)
                first, last = _span(connection, before)
        return Result(stored_at - back_at, first - back_at, last - back_at, backlog / (last - first), normal_rate)


@contextmanager
def _relay(config: Path) -> Iterator[None]:
    """``relevo relay`` until the block ends."""
    command = [sys.executable, "-m", "relevo", "--config", str(config), "relay"]
    process = subprocess.Popen(command, env=clean(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, "the relay ended by itself"
    finally:
        process.terminate()
        process.wait(60)


def _empty(connection: psycopg.Connection) -> None:
    while connection.execute(OPEN.encode()).fetchone() != (0,):
        time.sleep(0.1)


def _span(connection: psycopg.Connection, after: int) -> tuple[float, float]:
    row = connection.execute(SPAN.encode(), (after,)).fetchone()
    assert row is not None
    return float(row[0]), float(row[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backlog", type=int, default=50_000)
    parser.add_argument("--away", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--brokers", default="kafka,rabbitmq")
    parser.add_argument("--how", default="killed,frozen")
    arguments = parser.parse_args()
    database = os.environ["RELEVO_TEST_POSTGRES_URL"]
    print(f"machine: {machine()}")
    cases = [(broker, how) for broker in arguments.brokers.split(",") for how in arguments.how.split(",")]
    found: dict[tuple[str, str], list[Result]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.runs):
            for broker, how in cases if number % 2 == 0 else reversed(cases):
                own = private_kafka if broker == "kafka" else private_rabbitmq
                with own(Path(folder) / f"{broker}-{how}-{number}", 24_000 + secrets.randbelow(200) * 10) as server:
                    result = run(database, server, how, arguments.backlog, arguments.away)
                found[broker, how].append(result)
                print(f"  run {number + 1} {broker} {how}: {result}", flush=True)
    rows = [
        ["broker", "first event stored s", "settled s", "backlog empty s", "drain/s", "normal/s", "ratio of medians"]
    ]
    for (broker, how), results in found.items():
        drain, normal = [each.drain_rate for each in results], [each.normal_rate for each in results]
        rows.append(
            [
                *(f"{broker} {how}", spread([each.stored_s for each in results], 2)),
                spread([each.settled_s for each in results], 2),
                *(spread([each.empty_s for each in results], 2), spread(drain), spread(normal)),
                f"{statistics.median(drain) / statistics.median(normal):.2f}",
            ]
        )
    print(f"\nbacklog {arguments.backlog:,}, away {arguments.away:.0f} s and the time to start\n" + table(rows))


if __name__ == "__main__":
    main()
