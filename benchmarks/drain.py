"""How fast does one relay drain a backlog? PostgreSQL (fsync on) → Kafka (acks=all, idempotent).

``python -m benchmarks.drain [--events 200000] [--runs 3] [--relays mark,naive]``: every run gets a database and topics
of its own with the same committed events, each in a transaction of its own, about 300 bytes, 10,000 keys, 3 topics × 4
partitions. Relay, database and broker share the machine. The relays alternate; their ratios are what counts, absolute
figures move with the machine. Measured from the start of the relay's process until the end offsets show the last
event, from outside. Relays: ``mark``, ``log`` and ``wal`` are ours, by source; ``naive`` and ``debezium`` are not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import statistics
import subprocess
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
from benchmarks.relays import RELAYS, Relay

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
    def prepared(self, relay: Relay) -> Iterator[tuple[str, str, list[str]]]:
        """A database with the backlog, what its topics begin with, and the topics."""
        name = f"bench_{secrets.token_hex(4)}"
        topics = [f"{name}.{topic}" for topic in ("order", "payment", "shipment")]
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(f"create database {name}")
        url = urlsplit(self.admin_url)._replace(path=f"/{name}").geturl()
        for created in self.admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            created.result(20)
        try:
            relay.prepare(url)
            relay.fill(url, name, self.events, KEYS, PAYLOAD_BYTES)
            yield url, name, topics
        finally:
            self._drop(relay, url, name)
            for deleted in self.admin.delete_topics(topics).values():
                deleted.result(20)

    def _drop(self, relay: Relay, url: str, name: str) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                relay.drop(url)
                with psycopg.connect(self.admin_url, autocommit=True) as connection:
                    connection.execute(f"drop database if exists {name} with (force)")
                return
            except psycopg.Error:  # a slot is active until its reader's connection is gone
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def arrived(self, topics: list[str]) -> int:
        wanted = {
            TopicPartition(topic, partition): OffsetSpec.latest() for topic in topics for partition in range(PARTITIONS)
        }
        return sum(found.result(20).offset for found in self.admin.list_offsets(wanted).values())

    def run(self, relay: Relay, pids: dict[str, int], copies: int = 1) -> Result:
        """``copies``: relay processes that share the work."""
        with self.prepared(relay) as (url, name, topics), tempfile.TemporaryDirectory() as folder:
            command = relay.command(url, self.bootstrap, name, self.events, Path(folder))
            database, broker = Processes([pids["postgres"]]), Processes([pids["kafka"]])
            database_before, broker_before = database.sample(), broker.sample()
            environment = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
            started = time.monotonic()
            log = (Path(folder) / "log").open("wb")
            running = [subprocess.Popen(command, env=environment, stdout=log, stderr=log) for _ in range(copies)]
            measured = Processes([process.pid for process in running])
            try:
                samples = self._watch(running, [measured, database, broker], topics, started, Path(folder) / "log")
                spent = measured.sample(), database.sample() - database_before, broker.sample() - broker_before
            finally:
                for process in running:
                    process.terminate()
                for process in running:
                    process.wait(30)
            settled = relay.settled(url)
            if settled not in (None, self.events):
                raise SystemExit(f"only {settled} of {self.events} events are settled: the run does not count")
        return self._result(samples, spent, measured.peak_rss_mb)

    def _watch(
        self,
        running: list[subprocess.Popen[bytes]],
        measured: list[Processes],
        topics: list[str],
        started: float,
        log: Path,
    ) -> list[tuple[float, int]]:
        samples = []
        while True:
            count = self.arrived(topics)
            for processes in measured:  # often: a backend that ends takes its CPU time with it
                processes.sample()
            samples.append((time.monotonic() - started, count))
            if count >= self.events:
                return samples
            if any(process.poll() is not None for process in running) and self.arrived(topics) < self.events:
                raise SystemExit(f"the relay ended early with {count} events:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _result(self, samples: list[tuple[float, int]], spent: tuple[float, float, float], rss_mb: float) -> Result:
        whole_s = samples[-1][0]
        low = next(sample for sample in samples if sample[1] >= self.events * 0.15)
        high = next(sample for sample in samples if sample[1] >= self.events * 0.9)
        steady = (high[1] - low[1]) / max(high[0] - low[0], 1e-9)
        first_s = next(moment for moment, count in samples if count)
        relay, database, broker = (seconds / self.events * 1e6 for seconds in spent)
        return Result(self.events / whole_s, steady, first_s, relay, database, broker, rss_mb)


def settings_of(url: str) -> str:
    names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "wal_level", "full_page_writes")
    with psycopg.connect(url) as connection:
        values = [connection.execute(f"show {name}").fetchone() for name in names]
    return ", ".join(f"{name} {value[0]}" for name, value in zip(names, values, strict=True) if value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--relays", default="mark,naive", help=", ".join(RELAYS))
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    pids = {"postgres": _listener(database), "kafka": _listener(broker)}
    bench = Bench(database, broker, arguments.events)
    print(f"machine: {machine()}")
    print(f"PostgreSQL: {settings_of(database)}")
    print("Kafka: one node, acks=all, enable.idempotence=true, 3 topics x 4 partitions, no compression")
    print(f"events: {arguments.events:,} of {PAYLOAD_BYTES} bytes, {KEYS:,} keys, {arguments.runs} alternating runs\n")
    kinds = arguments.relays.split(",")
    results: dict[str, list[Result]] = {kind: [] for kind in kinds}
    for number in range(arguments.runs):
        for kind in kinds:
            result = bench.run(RELAYS[kind], pids)
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
    text = table(rows) + "\n"
    ours = [kind for kind in results if RELAYS[kind].ours]
    for kind in ours:
        for other in results.keys() - ours:
            for what in ("whole_per_s", "steady_per_s"):
                ratios = [
                    getattr(a, what) / getattr(b, what) for a, b in zip(results[kind], results[other], strict=True)
                ]
                name = "from start" if what == "whole_per_s" else "steady"
                text += f"\n{kind} / {other}, {name}, run by run: {spread(ratios, 2)}"
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
