"""What a purge of a million outbox and a million inbox rows costs everybody else.

``python -m benchmarks.purge [--rows 1000000] [--pairs 3] [--rate 200] [--writers 2] [--then delete]``

Each pair begins with that many old rows in the outbox and in the inbox, and has two runs, in alternating order: one
without a purge and one with `relevo purge` beside a relay (source ``mark``, whose rows tell when they were settled), a
consumer and writers at a fixed rate. Publish latency is
from a message's commit to its settlement, which follows the broker's confirmation, by the database's clock, of the
messages written while the purge ran (or for as long without one). With ``--then partitions`` the old rows are a closed
partition, dropped whole.

It asks three things, and fails (exit 1) if one does not hold: no deadlock (`pg_stat_database`), no statement over a
second (sampled from `pg_stat_activity` fifty times a second; the product's own are ended by the server at one second),
p99 with the purge at most twice that without (medians of the pairs).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psycopg

from benchmarks import scratch
from benchmarks.contestant import clean
from benchmarks.measure import machine, spread, table
from relevo.brokers import broker_for
from relevo.ops.migrate import migrate
from relevo.settings import load

OUTBOX = """
insert into relevo_outbox (event_id, bucket, topic, key, type, payload, created_at, settled_at, outcome)
select relevo_uuid7(), n % 1024, 'old', 'k', 'shop.order.placed', convert_to(repeat('x', 200), 'UTF8'),
       now() - interval '30 days', now() - interval '30 days', 'published'
from generate_series(1, {rows}) as n
"""
# Ids of a month ago, as consumers have written them.
INBOX = """
insert into relevo_inbox (consumer, event_id, processed_at)
select 'bench', (lpad(to_hex((extract(epoch from now() - interval '30 days') * 1000)::bigint + n), 12, '0')
                 || substr(replace(relevo_uuid7()::text, '-', ''), 13))::uuid, now() - interval '30 days'
from generate_series(1, {rows}) as n
"""
APPEND = (
    "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) "
    "values (relevo_uuid7(), %s, %s, %s, 'bench.done', '{}') returning seq"
)
LATE = """
select extract(epoch from settled_at - created_at)::float * 1000 from relevo_outbox
where topic = %s and seq between %s and %s order by 1
"""
OLDEST = """
select max(extract(epoch from clock_timestamp() - query_start))::float from pg_stat_activity
where datname = current_database() and state = 'active' and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


@dataclass
class Run:
    """Of one run: publish latencies, writers' statements (both in ms), the oldest statement seen, how long it took."""

    late_ms: list[float]
    writer_ms: list[float]
    statement_s: float
    took_s: float
    gone: Mapping[str, int] = field(default_factory=dict)

    def cells(self) -> list[str]:
        p50, p99 = quantile(self.late_ms, 0.5), quantile(self.late_ms, 0.99)
        rest = [max(self.late_ms), quantile(self.writer_ms, 0.99), max(self.writer_ms), self.statement_s * 1000]
        return [f"{value:,.1f}" for value in (p50, p99, *rest)] + [f"{self.took_s:.1f}", f"{len(self.late_ms):,}"]


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def write(url: str, topic: str, rate: float, over: Callable[[], bool]) -> tuple[list[float], int, int]:
    """Append ``rate`` a second until ``over``; each statement's milliseconds, the first and the last seq."""
    took: list[float] = []
    first = last = 0
    with psycopg.connect(url, autocommit=True) as connection:
        begin = time.monotonic()
        while not over() or not took:
            time.sleep(max(0.0, begin + len(took) / rate - time.monotonic()))
            before = time.monotonic()
            number = len(took)
            row = connection.execute(APPEND, (number % 1024, topic, b"k%d" % (number % 100))).fetchone()
            took.append((time.monotonic() - before) * 1000)
            assert row is not None
            first, last = first or row[0], row[0]
    return took, first, last


def watch(url: str, over: threading.Event) -> float:
    """The oldest statement of anybody in this database, in seconds, until ``over``."""
    oldest = 0.0
    with psycopg.connect(url, autocommit=True) as connection:
        while not over.wait(0.02):
            row = connection.execute(OLDEST.encode()).fetchone()
            oldest = max(oldest, (row and row[0]) or 0.0)
    return oldest


@dataclass
class Bench:
    """One database with what works on it."""

    url: str
    folder: Path
    arguments: argparse.Namespace
    topic: str
    written: int = 0

    def measure(self, *, purging: bool, seconds: float) -> Run:
        """Writers at work while a purge runs, or for ``seconds``."""
        done = threading.Event()
        began = time.monotonic()
        with ThreadPoolExecutor(self.arguments.writers + 1) as pool:
            watching = pool.submit(watch, self.url, done)
            rate = self.arguments.rate / self.arguments.writers
            writing = [
                pool.submit(write, self.url, self.topic, rate, done.is_set) for _ in range(self.arguments.writers)
            ]
            try:
                if purging:
                    gone = self._purge()
                else:
                    time.sleep(seconds)
                    gone = {}
            finally:
                took_s = time.monotonic() - began
                done.set()
            written = [each.result() for each in writing]
            oldest_s = watching.result()
        self.written += sum(len(each) for each, _, _ in written)
        late = self._latencies(min(first for _, first, _ in written), max(last for _, _, last in written))
        return Run(late, [ms for each, _, _ in written for ms in each], oldest_s, took_s, gone)

    def fill(self) -> None:
        """The old rows, and the same state of the tables for every pair."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            # What was just written is in front of the old rows, and a purge ends where everything is young.
            connection.execute("delete from relevo_outbox where topic = %s", (self.topic,))
            if self.arguments.then == "partitions":
                self._close(connection)
            connection.execute(OUTBOX.format(rows=self.arguments.rows).encode())
            connection.execute(INBOX.format(rows=self.arguments.rows).encode())
            if self.arguments.then == "partitions":
                self._close(connection)
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")

    def _close(self, connection: psycopg.Connection) -> None:
        """Close the partition that is open, so that the old rows have one of their own."""
        said = ""
        while said not in ("cut", "empty"):
            row = connection.execute("select relevo_cut_outbox(200, 10000000000)").fetchone()
            assert row is not None
            said = row[0]
            if said == "promised":
                connection.execute("select relevo_prove_outbox_cut(200)")

    def _purge(self) -> Mapping[str, int]:
        parts = ["--partitions" if self.arguments.then == "partitions" else "--outbox", "--inbox"]
        command = [sys.executable, "-m", "relevo", "--config", str(self.config), "purge", *parts, "--yes"]
        done = subprocess.run([*command, "--output", "json"], env=clean(), capture_output=True, check=True)
        found = msgspec.json.decode(done.stdout)
        return {"outbox": found["outbox"], "inbox": found["inbox"]}

    def _latencies(self, first: int, last: int) -> list[float]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            waiting = "select 1 from relevo_outbox where settled_at is null limit 1"
            while connection.execute(waiting.encode()).fetchone():
                time.sleep(0.05)
            return [row[0] for row in connection.execute(LATE.encode(), (self.topic, first, last))]

    def deadlocks(self) -> int:
        with psycopg.connect(self.url) as connection:
            row = connection.execute(
                "select deadlocks from pg_stat_database where datname = current_database()"
            ).fetchone()
        assert row is not None
        return int(row[0])

    def consumed(self) -> int:
        with psycopg.connect(self.url) as connection:
            row = connection.execute("select count(*) from bench_effect").fetchone()
        assert row is not None
        return int(row[0])

    @property
    def config(self) -> Path:
        return self.folder / "relevo.toml"

    @contextlib.contextmanager
    def process(self, *command: str) -> Iterator[None]:
        """``relevo …`` until the block ends."""
        full = [sys.executable, "-m", "relevo", "--config", str(self.config), *command]
        process = subprocess.Popen(
            full, env=clean(BENCH_TOPIC=self.topic), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield
            assert process.poll() is None, f"{command} ended by itself"
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second, of all writers together")
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--then", choices=["delete", "archive", "partitions"], default="delete")
    arguments = parser.parse_args()
    server = os.environ["RELEVO_TEST_POSTGRES_URL"]
    with scratch.database(server) as url, tempfile.TemporaryDirectory() as folder:
        holds = _pairs(Bench(url, Path(folder), arguments, scratch.name_of(url)))
    raise SystemExit(0 if holds else 1)


def _pairs(bench: Bench) -> bool:
    arguments = bench.arguments
    broker = os.environ.get("RELEVO_TEST_KAFKA_URL", f"embedded:{bench.folder / 'broker.db'}")
    bench.config.write_text(
        f'[database]\nurl = "{bench.url}"\n[broker]\nurl = "{broker}"\n[relay]\nsource = "mark"\n'
        f'[retention]\nevery_s = 0\nthen = "{arguments.then}"\n',
        "utf-8",
    )
    migrate(load(bench.config, environ={}))
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute("create table bench_effect (event_id uuid)")
    asyncio.run(broker_for(broker, {}).ensure_topics([bench.topic]))
    print(f"machine: {machine()}\nbroker: {urlsplit(broker).scheme}; {vars(arguments)}", flush=True)
    runs: dict[bool, list[Run]] = {False: [], True: []}
    with bench.process("relay"), bench.process("consume", "benchmarks.effect_app:app"):
        bench.measure(purging=False, seconds=3.0)
        seconds = 10.0
        for number in range(arguments.pairs):
            bench.fill()
            for purging in (False, True) if number % 2 else (True, False):
                run = bench.measure(purging=purging, seconds=seconds)
                seconds = max(seconds, run.took_s)
                runs[purging].append(run)
                print(f"  pair {number + 1} {'purge' if purging else 'none'}: {run.cells()} {run.gone}", flush=True)
        caught_up(bench)
    return _report(bench, runs)


def caught_up(bench: Bench) -> None:
    """The consumer was at work all the time: it comes to the end of what was written."""
    deadline = time.monotonic() + 60
    while bench.consumed() < bench.written:
        assert time.monotonic() < deadline, f"the consumer has {bench.consumed()} of {bench.written}"
        time.sleep(0.1)


def _report(bench: Bench, runs: Mapping[bool, list[Run]]) -> bool:
    heading = ["", "p50 ms", "p99 ms", "max ms", "writer p99", "writer max", "oldest statement ms", "s", "messages"]
    rows = [heading]
    rows += [["no purge", *run.cells()] for run in runs[False]]
    rows += [["purge", *run.cells()] for run in runs[True]]
    p99 = {purging: [quantile(run.late_ms, 0.99) for run in each] for purging, each in runs.items()}
    ratio = statistics.median(p99[True]) / statistics.median(p99[False])
    oldest_s = max(run.statement_s for run in runs[True])
    deadlocks = bench.deadlocks()
    removed = [f"{run.gone['outbox']:,} + {run.gone['inbox']:,} rows in {run.took_s:.1f} s" for run in runs[True]]
    complete = all(run.gone[part] >= bench.arguments.rows for run in runs[True] for part in ("outbox", "inbox"))
    print(table(rows))
    print(f"purged (outbox + inbox): {'; '.join(removed)}")
    print(f"p99 without {spread(p99[False], 1)} ms, with {spread(p99[True], 1)} ms, ratio {ratio:.2f} (at most 2)")
    print(f"deadlocks {deadlocks} (0); oldest statement {oldest_s:.3f} s (below 1)")
    print(f"messages consumed {bench.consumed():,}")
    return complete and deadlocks == 0 and oldest_s < 1.0 and ratio <= 2.0


if __name__ == "__main__":
    main()
