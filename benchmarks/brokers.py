"""What does the choice of a broker cost? One outbox, one relay and one consumer, through each of them.

``python -m benchmarks.brokers [--brokers kafka,rabbitmq,embedded,postgres] [--events 50000] [--rate 100]
[--seconds 10] [--runs 3]``: PostgreSQL, source ``log``, relay and consumer with default settings, 300 bytes, 10,000
keys. A handler writes one row per event, in its inbox transaction. First a backlog: from the start of both processes
until the last effect is committed. Then an even rate: from the outbox row to its effect, by the database's clock.
``postgres`` is no broker: its consumer reads the outbox, and no relay runs. Every effect must be there once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import psycopg

from benchmarks import scratch
from benchmarks.contestant import started
from benchmarks.drain import settings_of
from benchmarks.measure import Processes, machine, spread, table
from benchmarks.scratch import PAYLOAD_BYTES
from relevo.ops.migrate import migrate
from relevo.settings import load

KEYS = 10_000
TYPE = "bench.order.placed"
PATIENCE_S = 300.0
WARM_S = 2.0
APPEND = (
    "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) "
    "values (relevo_uuid7(), relevo_bucket_of(%s, null), %s, %s, %s, %s)"
)
LATE = """
select percentile_cont(array[0.5, 0.99]) within group (order by extract(epoch from e.at - o.created_at) * 1000)
from relevo_outbox as o join bench_effect as e using (event_id) where o.seq > %s
"""


@dataclass(frozen=True)
class Result:
    """``cpu_us``: of relay and consumer together, for an event of the backlog."""

    whole_per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


def run(database: str, broker: str, events: int, rate: int, seconds: float) -> Result:
    with scratch.database(database) as url, tempfile.TemporaryDirectory() as folder:
        topic = f"bench.{secrets.token_hex(4)}"
        broker_url = _broker_url(broker, url, Path(folder))
        config = Path(folder) / "relevo.toml"
        config.write_text(
            f'[database]\nurl = "{url}"\n[broker]\nurl = "{broker_url}"\n[relay]\nsource = "log"\n', "utf-8"
        )
        migrate(load(config, environ={}))
        asyncio.run(scratch.declare(broker_url, topic))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "create table bench_effect (event_id uuid not null, at timestamptz default clock_timestamp())"
            )
            scratch.fill(connection, topic, events, KEYS)
            connection.execute("vacuum analyze relevo_outbox")
            began = time.monotonic()
            with _processes(config, topic, relay=broker != "postgres") as running:
                measured = Processes([process.pid for process in running])
                _effects(connection, events, running)
                took, cpu = time.monotonic() - began, measured.sample()
                p50, p99 = _follow(connection, topic, rate, seconds, running)
            (twice,) = connection.execute(
                "select count(*) - count(distinct event_id) from bench_effect"
            ).fetchone() or (None,)
            if twice != 0:
                raise SystemExit(f"{broker}: {twice} effects happened twice")
    return Result(events / took, cpu / events * 1e6, p50, p99)


def _broker_url(broker: str, database: str, folder: Path) -> str:
    if broker == "postgres":
        return database
    return f"embedded:{folder}/broker.db" if broker == "embedded" else os.environ[f"RELEVO_TEST_{broker.upper()}_URL"]


@contextlib.contextmanager
def _processes(config: Path, topic: str, *, relay: bool) -> Iterator[list[subprocess.Popen[bytes]]]:
    """``relevo consume``, and ``relevo relay`` if there is a broker."""
    logs: list[Path] = []
    running: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for command in (["consume", "benchmarks.effect_app:app"], *([["relay"]] if relay else [])):
            full = [sys.executable, "-m", "relevo", "--config", str(config), *command]
            logs.append(config.parent / f"{command[0]}.log")
            running += stack.enter_context(started(full, 1, logs[-1], BENCH_TOPIC=topic, BENCH_TYPE=TYPE))
        try:
            yield running
        except SystemExit as error:
            raise SystemExit("\n".join([str(error), *(log.read_text()[-2000:] for log in logs)])) from None


def _effects(connection: psycopg.Connection, wanted: int, running: list[subprocess.Popen[bytes]]) -> None:
    """Wait for so many effects."""
    deadline = time.monotonic() + PATIENCE_S
    count = 0
    while count < wanted:
        if any(process.poll() is not None for process in running):
            raise SystemExit("a process ended early")
        if time.monotonic() > deadline:
            raise SystemExit(f"only {count} of {wanted} effects within {PATIENCE_S:g} s")
        time.sleep(0.05)
        (count,) = connection.execute("select count(*) from bench_effect").fetchone() or (0,)


def _follow(
    connection: psycopg.Connection, topic: str, rate: int, seconds: float, running: list[subprocess.Popen[bytes]]
) -> tuple[float, float]:
    """Write at an even rate; p50 and p99 from row to effect in ms, the first two seconds left out."""
    (before,) = connection.execute("select count(*) from bench_effect").fetchone() or (0,)
    begin, warm, count = time.monotonic(), None, int(rate * (seconds + WARM_S))
    for number in range(count):
        time.sleep(max(0.0, begin + number / rate - time.monotonic()))
        if warm is None and number >= rate * WARM_S:
            (warm,) = connection.execute("select max(seq) from relevo_outbox").fetchone() or (0,)
        key = b"o%d" % (number % KEYS)
        connection.execute(APPEND, (key, topic, key, TYPE, b'{"note": "' + b"y" * (PAYLOAD_BYTES - 12) + b'"}'))
    _effects(connection, before + count, running)
    row = connection.execute(LATE.encode(), (warm,)).fetchone()
    assert row is not None
    return float(row[0][0]), float(row[0][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--brokers", default="kafka,rabbitmq,embedded,postgres")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    database, names = os.environ["RELEVO_TEST_POSTGRES_URL"], arguments.brokers.split(",")
    print(f"machine: {machine()}\nPostgreSQL: {settings_of(database)}")
    print(f"a backlog of {arguments.events:,}, then {arguments.rate}/s; {arguments.runs} alternating runs\n")
    found: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(arguments.runs):
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(run(database, name, arguments.events, arguments.rate, arguments.seconds))
            print(f"  run {number + 1} {name}: {found[name][-1]}", flush=True)
    rows = [["broker", "backlog: effects/s from start", "CPU µs/event", f"{arguments.rate}/s: p50 ms", "p99 ms"]]
    for name, results in found.items():
        values = [[getattr(result, each.name) for result in results] for each in fields(Result)]
        rows.append([name, *(spread(each, digits) for each, digits in zip(values, (0, 0, 1, 1), strict=True))])
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()
