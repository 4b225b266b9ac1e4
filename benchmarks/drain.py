"""How fast does one relay drain a backlog? PostgreSQL (fsync on) → Kafka (acks=all, idempotent).

``python -m benchmarks.drain [--events 200000] [--runs 3] [--relays mark,naive] [--keys 10000]``: every run gets a
database and topics of its own with the same committed events, each in a transaction of its own, about 300 bytes, 3
topics × 4 partitions. Relay, database and broker share the machine. The relays alternate; their ratios are what counts,
absolute figures move with the machine. Measured from the start of the relay's processes until the end offsets show the
last event, from outside. Then everything is read back: each event must be there, and it is counted how many messages
came twice and how many behind a younger one of their topic and key. Relays: ``mark``, ``log`` and ``wal`` are ours, by
source, the others are not; one that cannot be installed or does not finish is told with the reason, and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from benchmarks import arrivals, scratch
from benchmarks.arrivals import Arrived
from benchmarks.contestant import Contestant, started
from benchmarks.measure import Processes, machine, spread, table
from benchmarks.relays import RELAYS

PARTITIONS = 4
KEYS = 10_000
STALL_S = 60.0
"""A relay that delivers nothing for so long has failed."""


@dataclass(frozen=True)
class Result:
    whole_per_s: float
    steady_per_s: float
    first_s: float
    relay_us: float
    database_us: float
    broker_us: float
    rss_mb: float
    repeated: int
    swapped: int


class Bench:
    def __init__(self, database: str, broker: str, events: int, keys: int = KEYS) -> None:
        self.admin_url = database
        self.bootstrap = broker.removeprefix("kafka://")
        self.events = events
        self.keys = keys
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    @contextlib.contextmanager
    def prepared(self, relay: Contestant) -> Iterator[tuple[str, str, list[str]]]:
        """A database with the backlog, what its topics begin with, and the topics."""
        relay.ready()
        with scratch.database(self.admin_url) as url:
            name = scratch.name_of(url)
            topics = [f"{name}.{topic}" for topic in ("order", "payment", "shipment")]
            for created in self.admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
                created.result(20)
            try:
                relay.prepare(url)
                relay.fill(url, name, self.events, self.keys, scratch.PAYLOAD_BYTES)
                yield url, name, topics
            finally:
                relay.end()
                for deleted in self.admin.delete_topics(topics).values():
                    deleted.result(20)

    def arrived(self, topics: list[str]) -> int:
        """How many messages are in the topics."""
        return sum(self.ends(topics).values())

    def ends(self, topics: list[str]) -> dict[tuple[str, int], int]:
        wanted = {
            TopicPartition(topic, partition): OffsetSpec.latest() for topic in topics for partition in range(PARTITIONS)
        }
        found = self.admin.list_offsets(wanted)
        return {(where.topic, where.partition): future.result(20).offset for where, future in found.items()}

    def run(self, relay: Contestant, pids: dict[str, int], copies: int = 1) -> Result:
        """``copies``: how often the relay is started; they share the work."""
        with self.prepared(relay) as (url, name, topics), tempfile.TemporaryDirectory() as folder:
            command, log = relay.command(url, self.bootstrap, name, self.events, Path(folder)), Path(folder) / "log"
            database, broker = Processes([pids["postgres"]]), Processes([pids["kafka"]])
            database_before, broker_before = database.sample(), broker.sample()
            begun = time.monotonic()
            with started(command, copies * relay.processes(quick=False), log) as running:
                measured = Processes([process.pid for process in running])
                processes = [measured, database, broker]
                samples = self._watch(running, processes, topics, begun, log, self.events)
                spent = measured.sample(), database.sample() - database_before, broker.sample() - broker_before
                arrived = arrivals.read(self.bootstrap, self.ends(topics))
                while arrived.events < self.events:  # some came twice before the last came at all
                    wanted = samples[-1][1] + self.events - arrived.events
                    samples += self._watch(running, processes, topics, begun, log, wanted)
                    arrived = arrivals.read(self.bootstrap, self.ends(topics))
            settled = relay.settled(url)
            if settled not in (None, self.events):
                raise SystemExit(f"only {settled} of {self.events} events are settled: the run does not count")
        return self._result(samples, spent, measured.peak_rss_mb, arrived)

    def _watch(
        self,
        running: list[subprocess.Popen[bytes]],
        measured: list[Processes],
        topics: list[str],
        begun: float,
        log: Path,
        wanted: int,
    ) -> list[tuple[float, int]]:
        """(seconds since ``begun``, messages in the topics), until there are ``wanted``."""
        samples: list[tuple[float, int]] = []
        moved = time.monotonic(), -1
        while True:
            count = self.arrived(topics)
            for processes in measured:  # often: a backend that ends takes its CPU time with it
                processes.sample()
            samples.append((time.monotonic() - begun, count))
            if count >= wanted:
                return samples
            if any(process.poll() is not None for process in running) and self.arrived(topics) < wanted:
                raise SystemExit(f"the relay ended early with {count} messages:\n{log.read_text()[-2000:]}")
            if count > moved[1]:
                moved = time.monotonic(), count
            elif time.monotonic() - moved[0] > STALL_S:
                raise SystemExit(f"nothing came for {STALL_S:g} s after {count} messages:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _result(
        self, samples: list[tuple[float, int]], spent: tuple[float, float, float], rss_mb: float, arrived: Arrived
    ) -> Result:
        whole_s = samples[-1][0]
        low = next(sample for sample in samples if sample[1] >= self.events * 0.15)
        high = next(sample for sample in samples if sample[1] >= self.events * 0.9)
        steady = (high[1] - low[1]) / max(high[0] - low[0], 1e-9)
        first_s = next(moment for moment, count in samples if count)
        relay, database, broker = (seconds / self.events * 1e6 for seconds in spent)
        rates = self.events / whole_s, steady, first_s
        return Result(*rates, relay, database, broker, rss_mb, arrived.repeated, arrived.swapped)


def settings_of(url: str) -> str:
    names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "wal_level", "full_page_writes")
    with psycopg.connect(url) as connection:
        values = [connection.execute(f"show {name}").fetchone() for name in names]
    return ", ".join(f"{name} {value[0]}" for name, value in zip(names, values, strict=True) if value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--relays", default="mark,naive", help=", ".join(RELAYS))
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    pids = {"postgres": _listener(database), "kafka": _listener(broker)}
    bench = Bench(database, broker, arguments.events, arguments.keys)
    print(f"machine: {machine()}")
    print(f"PostgreSQL: {settings_of(database)}")
    print("Kafka: one node, acks=all, enable.idempotence=true, 3 topics x 4 partitions, no compression")
    print(f"events: {arguments.events:,} of {scratch.PAYLOAD_BYTES} bytes, {arguments.keys:,} keys")
    print(f"{arguments.runs} alternating runs\n")
    kinds = arguments.relays.split(",")
    print_settings(kinds)
    results: dict[str, dict[int, Result]] = {kind: {} for kind in kinds}
    for number in range(1, arguments.runs + 1):
        for kind in kinds:
            try:
                result = bench.run(RELAYS[kind], pids)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the others are measured all the same
                print(f"  run {number} {kind}: not measured: {error}", flush=True)
                continue
            results[kind][number] = result
            values = {name: round(value, 2) for name, value in vars_of(result).items()}
            print(f"  run {number} {kind}: {json.dumps(values)}", flush=True)
    measured = {kind: runs for kind, runs in results.items() if runs}
    if measured:
        print(f"\n{report(measured)}")
    if failed(results):
        raise SystemExit(1)


def failed(results: Mapping[str, object]) -> bool:
    """Whether one of ours has no result. Others may be impossible to install here."""
    return any(RELAYS[name].ours and not runs for name, runs in results.items())


def print_settings(names: list[str]) -> None:
    """What each of them runs with."""
    for name in names:
        print(f"- {name}: {RELAYS[name].settings}")
    print()


def report(results: Mapping[str, Mapping[int, Result]]) -> str:
    heading = [
        "relay",
        "events/s from start",
        "steady events/s",
        "first event s",
        "CPU µs/event relay / PG / broker",
        "RSS MB",
        "came twice",
        "out of order",
    ]
    rows = [heading]
    for kind, numbered in results.items():
        runs = list(numbered.values())
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
                spread([run.repeated for run in runs]),
                spread([run.swapped for run in runs]),
            ]
        )
    text = table(rows) + "\n"
    ours = [kind for kind in results if RELAYS[kind].ours]
    for kind in ours:
        for other in [name for name in results if name not in ours]:
            both = [(run, results[other][number]) for number, run in results[kind].items() if number in results[other]]
            for what, name in (("whole_per_s", "from start"), ("steady_per_s", "steady")) if both else ():
                ratios = [getattr(a, what) / getattr(b, what) for a, b in both]
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
