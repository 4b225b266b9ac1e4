"""How long from commit to consumer, and what does following cost? PostgreSQL (fsync on) → Kafka (acks=all, idempotent).

``python -m benchmarks.latency [--relays mark,debezium] [--rates 1000,100] [--seconds 20] [--runs 3]``: events of 300
bytes, each in a transaction of its own, written at an even rate; latency is from the return of the commit until a plain
Kafka consumer has the message, by one clock of this machine, the first 3 s left out. Beside it: from the start of the
relay's process to its first event at the consumer, the relay's CPU with nothing to do and at each rate, in % of a core.
Every relay is set for latency here, and then everything is read as in ``drain``: what is missing, what came twice.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks import arrivals
from benchmarks.contestant import Contestant, started
from benchmarks.drain import PARTITIONS, Bench, failed, print_settings, settings_of
from benchmarks.measure import Processes, machine, spread, table
from benchmarks.relays import RELAYS

WARM_S = 3.0
PATIENCE_S = 60.0
WRITERS = 4


@dataclass
class Result:
    start_s: float = 0.0
    idle_percent: float = 0.0
    quantiles_ms: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    percent: dict[int, float] = field(default_factory=dict)
    rate: dict[int, float] = field(default_factory=dict)
    missing: int = 0
    repeated: int = 0
    swapped: int = 0


class Watch:
    """A plain consumer in a thread: when the message of each number arrived."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        self.seen: dict[int, float] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": topics[0],
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign([TopicPartition(topic, part, 0) for topic in topics for part in range(PARTITIONS)])
        self.trouble = "none"
        """What the client said last that was not a message."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            moment = time.monotonic()
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:  # a topic that has just been made may be unknown for long
                    self.trouble = str(error)
                continue
            number = arrivals.number(message.value())
            self.seen.setdefault(number, moment)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


def writer(url: str, prefix: str, kind: str, first: int, rate: int, seconds: float) -> dict[int, float]:
    """Write at ``rate`` for ``seconds``; when each commit returned. In a process of its own, over a few connections."""
    relay = RELAYS[kind]
    begin = time.monotonic() + 0.1
    done: dict[int, float] = {}

    def some(part: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for number in range(part, int(rate * seconds), WRITERS):
                wait = begin + number / rate - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                relay.append(connection, prefix, first + number)
                done[first + number] = time.monotonic()

    threads = [threading.Thread(target=some, args=(part,)) for part in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def run(bench: Bench, relay: Contestant, rates: list[int], seconds: float, idle_s: float) -> Result:
    result = Result()
    with bench.prepared(relay) as (url, name, topics), tempfile.TemporaryDirectory() as folder:
        command = relay.command(url, bench.bootstrap, name, 2**31, Path(folder), quick=True)
        with psycopg.connect(url, autocommit=True) as connection:
            relay.append(connection, name, 0)
        log = Path(folder) / "log"
        watch = Watch(bench.bootstrap, topics)
        begun = time.monotonic()
        try:
            with started(command, relay.processes(quick=True), log) as running:
                relay_cpu = Processes([process.pid for process in running])

                def alive() -> None:
                    if any(process.poll() is not None for process in running):
                        raise SystemExit(f"the relay ended early:\n{log.read_text()[-2000:]}")

                _until(lambda: 0 in watch.seen, alive)
                if 0 not in watch.seen:
                    told = f"the consumer's last trouble: {watch.trouble}\n{log.read_text()[-2000:]}"
                    raise SystemExit(f"nothing arrived within {PATIENCE_S:g} s; {told}")
                result.start_s = watch.seen[0] - begun
                time.sleep(2)  # what a start leaves behind
                result.idle_percent = _percent(relay_cpu, lambda: time.sleep(idle_s))
                first = 1
                for rate in rates:
                    _follow(result, watch, relay_cpu, alive, (url, name, relay.name, first, rate, seconds + WARM_S))
                    first += int(rate * (seconds + WARM_S))
            arrived = arrivals.read(bench.bootstrap, bench.ends(topics))
            result.repeated, result.swapped = arrived.repeated, arrived.swapped
        finally:
            watch.close()
    return result


def _follow(
    result: Result,
    watch: Watch,
    relay_cpu: Processes,
    alive: Callable[[], None],
    job: tuple[str, str, str, int, int, float],
) -> None:
    *_, first, rate, seconds = job
    with get_context("spawn").Pool(1) as pool:
        found: Future[dict[int, float]] = Future()
        pool.apply_async(writer, job, callback=found.set_result, error_callback=found.set_exception)
        result.percent[rate] = _percent(relay_cpu, lambda: _until(found.done, alive, seconds + PATIENCE_S))
        committed = found.result(1)
    took = max(committed.values()) - min(committed.values())
    _until(lambda: all(number in watch.seen for number in committed), alive)
    counted = [number for number in committed if number >= first + rate * WARM_S]
    late = sorted((watch.seen[n] - committed[n]) * 1000 for n in counted if n in watch.seen)
    result.missing += sum(number not in watch.seen for number in committed)
    result.rate[rate] = len(committed) / took
    cuts = statistics.quantiles(late, n=100)
    result.quantiles_ms[rate] = (cuts[49], cuts[94], cuts[98])


def _percent(processes: Processes, work: Callable[[], None]) -> float:
    """CPU of the processes while ``work`` runs, in % of a core."""
    before, begun = processes.sample(), time.monotonic()
    work()
    return (processes.sample() - before) / (time.monotonic() - begun) * 100


def _until(true: Callable[[], bool], alive: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not true() and time.monotonic() < deadline:
        alive()
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--relays", default="mark,log,wal,debezium", help=", ".join(RELAYS))
    parser.add_argument("--rates", default="1000,100")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    print(f"machine: {machine()}\nPostgreSQL: {settings_of(database)}")
    print(f"Kafka: one node, acks=all, enable.idempotence=true; {arguments.runs} alternating runs")
    bench = Bench(database, broker, 0)
    rates = [int(rate) for rate in arguments.rates.split(",")]
    results: dict[str, list[Result]] = {name: [] for name in arguments.relays.split(",")}
    print_settings(list(results))
    for number in range(arguments.runs):
        for name in list(results):
            try:
                result = run(bench, RELAYS[name], rates, arguments.seconds, arguments.idle_seconds)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the others are measured all the same
                print(f"  run {number + 1} {name}: not measured: {error}", flush=True)
                continue
            results[name].append(result)
            print(f"  run {number + 1} {name}: {result}", flush=True)
    print(f"\n{report({name: runs for name, runs in results.items() if runs}, rates)}")
    if failed(results):
        raise SystemExit(1)


def report(results: dict[str, list[Result]], rates: list[int]) -> str:
    heading = ["relay", "start → first event s", "idle % of a core"]
    for rate in rates:
        heading += [f"{rate:,}/s: p50 ms", "p95", "p99", "relay % of a core", "reached/s"]
    rows = [[*heading, "missing", "came twice", "out of order"]]
    for name, runs in results.items():
        row = [name, spread([run.start_s for run in runs], 2), spread([run.idle_percent for run in runs], 2)]
        for rate in rates:
            row += [spread([run.quantiles_ms[rate][which] for run in runs], 1) for which in range(3)]
            row += [spread([run.percent[rate] for run in runs], 1), spread([run.rate[rate] for run in runs])]
        rows.append(
            [*row, *(str(sum(getattr(run, what) for run in runs)) for what in ("missing", "repeated", "swapped"))]
        )
    return table(rows)


if __name__ == "__main__":
    main()
