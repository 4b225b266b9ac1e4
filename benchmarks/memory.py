"""Does memory depend on the backlog? Peak RSS of relay and consumer with 50,000 and with 5,000,000 waiting messages.

``python -m benchmarks.memory [--small 50000] [--large 5000000] [--consumer-seconds 60] [--relay log]``: the relay
drains each backlog whole; the consumer then works on what the relay left in Kafka for a fixed time. Both must stay
flat: what is in flight is bounded by count and by bytes, whatever waits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from benchmarks.contestant import clean
from benchmarks.drain import Bench
from benchmarks.measure import Processes, machine, table
from benchmarks.relays import OURS, Relay

FILL = """
insert into relevo_outbox (event_id, bucket, topic, key, type, payload)
select relevo_uuid7(), relevo_bucket_of(convert_to(k, 'UTF8'), null),
       %s || '.' || (array['order', 'payment', 'shipment'])[i %% 3 + 1], convert_to(k, 'UTF8'), 'bench.order.placed',
       convert_to(rpad('{"order_id": ' || i || ', "note": "', %s - 2, 'y') || '"}', 'UTF8')
from (select i, 'o' || i %% %s as k from generate_series(%s::int, %s::int) as i) as made
"""
CHUNK = 10_000


class Filled(Relay):
    """With many rows in a transaction: five million of their own would take longer than all the rest."""

    def fill(self, url: str, prefix: str, events: int, keys: int, size: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for first in range(1, events + 1, CHUNK):
                last = min(first + CHUNK - 1, events)
                connection.execute(FILL.encode(), (prefix, size, keys, first, last))
            connection.execute("vacuum analyze relevo_outbox")
            connection.execute("checkpoint")


def peak_of(bench: Bench, ours: Relay, seconds: float) -> tuple[float, float, int]:
    """Peak RSS in MB of the relay over the whole drain and of the consumer over ``seconds``; messages consumed."""
    with bench.prepared(ours) as (url, name, topics), tempfile.TemporaryDirectory() as folder:
        command = ours.command(url, bench.bootstrap, name, bench.events, Path(folder))
        relay = _run(command, lambda: bench.arrived(topics) >= bench.events, {})
        consume = [*command[:-1], "consume", "benchmarks.counting:counter"]
        end = time.monotonic() + seconds
        consumer = _run(consume, lambda: time.monotonic() > end, {"BENCH_TOPICS": ",".join(topics)})
        with psycopg.connect(url) as connection:
            row = connection.execute("select count(*) from relevo_inbox").fetchone()
    return relay, consumer, int(row[0]) if row else 0


def _run(command: list[str], done: Callable[[], bool], more: dict[str, str]) -> float:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=clean(**more), stdout=log, stderr=log)
        measured = Processes([process.pid])
        try:
            while not done():
                measured.sample()
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(f"{command[-1]} ended early:\n{log.read().decode()[-2000:]}")
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait(60)
    return measured.peak_rss_mb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", type=int, default=50_000)
    parser.add_argument("--large", type=int, default=5_000_000)
    parser.add_argument("--consumer-seconds", type=float, default=60.0)
    parser.add_argument("--relay", default="log", choices=list(OURS))
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    print(f"machine: {machine()}")
    ours = Filled(arguments.relay, arguments.relay)
    rows = [["backlog", "relay peak RSS MB", "consumer peak RSS MB", "consumed meanwhile"]]
    for events in (arguments.small, arguments.large):
        relay, consumer, consumed = peak_of(Bench(database, broker, events), ours, arguments.consumer_seconds)
        rows.append([f"{events:,}", f"{relay:.0f}", f"{consumer:.0f}", f"{consumed:,}"])
        print(f"  {rows[-1]}", file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
