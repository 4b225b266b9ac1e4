"""How fast does one relay drain a backlog? PostgreSQL (fsync on) → Kafka (acks=all, idempotent), source ``mark``.

``python -m benchmarks.drain [--events 200000] [--runs 3]``: every run gets a database and topics of its own with the
same committed events, about 300 bytes each, 10,000 keys, 3 topics × 4 partitions. Relay, database and broker share the
machine. Ours and the naive relay alternate; their ratio is what counts, absolute figures move with the machine.
Measured from the start of the relay's process until the topics' end offsets show the last event, from outside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from benchmarks.measure import Processes, machine, spread, table
from relevo.ops.migrate import migrate
from relevo.settings import DatabaseSettings, Settings

PARTITIONS = 4
KEYS = 10_000
PAYLOAD_BYTES = 300


@dataclass(frozen=True)
class Result:
    whole_per_s: float
    steady_per_s: float
    first_s: float
    relay_us: float
    database_us: float
    broker_us: float
    rss_mb: float


class Bench:
    def __init__(self, database: str, broker: str, events: int) -> None:
        self.admin_url = database
        self.bootstrap = broker.removeprefix("kafka://")
        self.events = events
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    @contextlib.contextmanager
    def prepared(self) -> Iterator[tuple[str, list[str]]]:
        """A database with the backlog, and its topics."""
        name = f"bench_{secrets.token_hex(4)}"
        topics = [f"{name}.{topic}" for topic in ("order", "payment", "shipment")]
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(f"create database {name}")
        url = urlsplit(self.admin_url)._replace(path=f"/{name}").geturl()
        for created in self.admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            created.result(20)
        try:
            migrate(Settings(database=DatabaseSettings(url=url)))
            self._fill(url, topics)
            yield url, topics
        finally:
            with psycopg.connect(self.admin_url, autocommit=True) as connection:
                connection.execute(f"drop database if exists {name} with (force)")
            for deleted in self.admin.delete_topics(topics).values():
                deleted.result(20)

    def _fill(self, url: str, topics: list[str]) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) "
                "select relevo_uuid7(), relevo_bucket_of(convert_to(k, 'UTF8'), null), "
                "(%(topics)s::text[])[i %% 3 + 1], convert_to(k, 'UTF8'), 'bench.order.placed', "
                "convert_to(body, 'UTF8') "
                "from (select i, 'o' || i %% %(keys)s as k, "
                "      rpad('{\"order_id\": ' || i || ', \"note\": \"', %(size)s - 2, 'y') || '\"}' as body "
                "      from generate_series(1, %(events)s) as i) as made",
                {"keys": KEYS, "topics": topics, "size": PAYLOAD_BYTES, "events": self.events},
            )
            connection.execute("vacuum analyze relevo_outbox")
            connection.execute("checkpoint")

    def arrived(self, topics: list[str]) -> int:
        wanted = {
            TopicPartition(topic, partition): OffsetSpec.latest() for topic in topics for partition in range(PARTITIONS)
        }
        return sum(found.result(20).offset for found in self.admin.list_offsets(wanted).values())

    def run(self, kind: str, pids: dict[str, int]) -> Result:
        with self.prepared() as (url, topics), tempfile.TemporaryDirectory() as folder:
            command = self._command(kind, url, Path(folder))
            database, broker = Processes([pids["postgres"]]), Processes([pids["kafka"]])
            database_before, broker_before = database.sample(), broker.sample()
            environment = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
            started = time.monotonic()
            log = (Path(folder) / "log").open("wb")
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            relay = Processes([process.pid])
            try:
                samples = self._watch(process, [relay, database, broker], topics, started, Path(folder) / "log")
                spent = relay.sample(), database.sample() - database_before, broker.sample() - broker_before
            finally:
                process.terminate()
                process.wait(30)
            if kind == "relevo":
                self._all_settled(url)
        return self._result(samples, spent, relay.peak_rss_mb)

    def _watch(
        self, process: subprocess.Popen[bytes], measured: list[Processes], topics: list[str], started: float, log: Path
    ) -> list[tuple[float, int]]:
        samples = []
        while True:
            count = self.arrived(topics)
            for processes in measured:  # often: a backend that ends takes its CPU time with it
                processes.sample()
            samples.append((time.monotonic() - started, count))
            if count >= self.events:
                return samples
            if process.poll() is not None and self.arrived(topics) < self.events:
                raise SystemExit(f"the relay ended early with {count} events:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _all_settled(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            row = connection.execute("select count(*) from relevo_outbox where outcome = 'published'").fetchone()
        if row is None or row[0] != self.events:
            raise SystemExit(f"only {row} of {self.events} events are settled: the run does not count")

    def _result(self, samples: list[tuple[float, int]], spent: tuple[float, float, float], rss_mb: float) -> Result:
        whole_s = samples[-1][0]
        low = next(sample for sample in samples if sample[1] >= self.events * 0.15)
        high = next(sample for sample in samples if sample[1] >= self.events * 0.9)
        steady = (high[1] - low[1]) / max(high[0] - low[0], 1e-9)
        first_s = next(moment for moment, count in samples if count)
        relay, database, broker = (seconds / self.events * 1e6 for seconds in spent)
        return Result(self.events / whole_s, steady, first_s, relay, database, broker, rss_mb)

    def _command(self, kind: str, url: str, folder: Path) -> list[str]:
        if kind == "naive":
            return [sys.executable, "-m", "benchmarks.naive", url, self.bootstrap, str(self.events)]
        config = folder / "relevo.toml"
        config.write_text(f'[database]\nurl = "{url}"\n[broker]\nurl = "kafka://{self.bootstrap}"\n')
        return [sys.executable, "-m", "relevo", "--config", str(config), "relay"]


def settings_of(url: str) -> str:
    names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "wal_level", "full_page_writes")
    with psycopg.connect(url) as connection:
        values = [connection.execute(f"show {name}").fetchone() for name in names]
    return ", ".join(f"{name} {value[0]}" for name, value in zip(names, values, strict=True) if value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kinds", default="relevo,naive")
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    pids = {"postgres": _listener(database), "kafka": _listener(broker)}
    bench = Bench(database, broker, arguments.events)
    print(f"machine: {machine()}")
    print(f"PostgreSQL: {settings_of(database)}")
    print("Kafka: one node, acks=all, enable.idempotence=true, 3 topics x 4 partitions, no compression")
    print(f"events: {arguments.events:,} of {PAYLOAD_BYTES} bytes, {KEYS:,} keys, {arguments.runs} alternating runs\n")
    kinds = arguments.kinds.split(",")
    results: dict[str, list[Result]] = {kind: [] for kind in kinds}
    for number in range(arguments.runs):
        for kind in kinds:
            result = bench.run(kind, pids)
            results[kind].append(result)
            print(
                f"  run {number + 1} {kind}: {json.dumps({k: round(v, 2) for k, v in vars_of(result).items()})}",
                flush=True,
            )
    print()
    print(report(results))


def report(results: dict[str, list[Result]]) -> str:
    heading = [
        "relay",
        "events/s from start",
        "steady events/s",
        "first event s",
        "CPU µs/event relay / PG / broker",
        "RSS MB",
    ]
    rows = [heading]
    for kind, runs in results.items():
        cpu = " / ".join(
            f"{statistics.median(getattr(run, name) for run in runs):.1f}"
            for name in ("relay_us", "database_us", "broker_us")
        )
        rows.append(
            [
                kind,
                spread([run.whole_per_s for run in runs]),
                spread([run.steady_per_s for run in runs]),
                spread([run.first_s for run in runs], 2),
                cpu,
                spread([run.rss_mb for run in runs]),
            ]
        )
    text = table(rows)
    if {"relevo", "naive"} <= results.keys():
        ratios = [
            ours.whole_per_s / theirs.whole_per_s
            for ours, theirs in zip(results["relevo"], results["naive"], strict=True)
        ]
        text += f"\n\nrelevo / naive, from start, run by run: {spread(ratios, 2)}"
    return text


def vars_of(result: Result) -> dict[str, float]:
    return {name: getattr(result, name) for name in Result.__dataclass_fields__}


def _listener(url: str) -> int:
    """The process that listens on the URL's port: the server whose CPU is measured."""
    import psutil

    port = urlsplit(url).port
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return int(connection.pid)
    raise SystemExit(
        f"nothing listens on port {port} that this user may look at; run make bench on the servers' machine"
    )


if __name__ == "__main__":
    main()
