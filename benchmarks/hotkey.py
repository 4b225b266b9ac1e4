"""What does order cost one busy key? 50,000 events of one key, and as many of 10,000 keys.

``python -m benchmarks.hotkey [--events 50000] [--keys 1,10000] [--runs 3] [--cases kafka,kafka-waves,rabbitmq]``:
PostgreSQL, source ``log`` (``--source``), one relay with default settings. A publisher that is prefix-safe (Kafka) is
given whole pages; any other (RabbitMQ) has one unconfirmed message of a key. ``kafka-waves`` is Kafka treated like
that, which says what prefix-safety is worth. Measured from the start of the relay until the broker has them all;
afterwards everything is read back, and each key must be complete and in order. Alternating runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

import msgspec
import psycopg

from benchmarks import scratch
from benchmarks.contestant import clean
from benchmarks.drain import settings_of
from benchmarks.measure import machine, spread, table
from benchmarks.scratch import CONSUMER
from relevo.brokers import broker_for
from relevo.brokers.kafka import CAPABILITIES
from relevo.ops.migrate import migrate
from relevo.settings import load
from tests.support.ledger.outages import stored


def run(database: str, broker_url: str, source: str, keys: int, events: int, *, waves: bool) -> float:
    """Events per second, from the start of the relay's process."""
    with scratch.database(database) as url, tempfile.TemporaryDirectory() as folder:
        topic = f"bench.{secrets.token_hex(4)}"
        asyncio.run(scratch.declare(broker_url, topic))
        config = Path(folder) / "relevo.toml"
        config.write_text(
            f'[database]\nurl = "{url}"\n[broker]\nurl = "{broker_url}"\n[relay]\nsource = "{source}"\n', "utf-8"
        )
        migrate(load(config, environ={}))
        with psycopg.connect(url, autocommit=True) as connection:
            scratch.fill(connection, topic, events, keys)
            connection.execute("vacuum analyze relevo_outbox")
        command = [sys.executable, "-m", "benchmarks.hotkey", "--child", str(config)]
        command += ["--waves"] if waves else []
        began = time.monotonic()
        process = subprocess.Popen(command, env=clean(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(_stored(broker_url, topic, events, process))
            took = time.monotonic() - began
        finally:
            process.terminate()
            process.wait(60)
        asyncio.run(_check(broker_url, topic, keys, events))
    return events / took


async def _stored(broker_url: str, topic: str, events: int, process: subprocess.Popen[bytes]) -> None:
    counts = stored(broker_url, topic, CONSUMER)
    try:
        async for count in counts:
            if count >= events:
                return
            if process.poll() is not None:
                raise SystemExit("the relay ended early")
            await asyncio.sleep(0.05)
    finally:
        await counts.aclose()


async def _check(broker_url: str, topic: str, keys: int, events: int) -> None:
    """Read everything back: complete, and in order within each key."""
    subscription = await broker_for(broker_url).subscribe(CONSUMER, [topic])
    last: dict[bytes, int] = {}
    ids: set[UUID] = set()
    try:
        while len(ids) < events:
            deliveries = await subscription.take(1000, 10.0)
            if not deliveries:
                raise SystemExit(f"{len(ids)} of {events} events came back")
            for delivery in deliveries:
                message = delivery.message
                if message.event_id not in ids:
                    ids.add(message.event_id)
                    number = int(json.loads(message.payload or b"")["order_id"])
                    if last.get(message.key or b"", 0) >= number:
                        raise SystemExit(f"{number} of key {message.key!r} came after {last[message.key or b'']}")
                    last[message.key or b""] = number
            await subscription.settle(deliveries)
    finally:
        await subscription.aclose()
    if len(last) != keys:
        raise SystemExit(f"{len(last)} of {keys} keys came back")


def child(config: str, *, waves: bool) -> None:
    """The relay, as ``relevo relay`` runs it; ``waves``: as if Kafka's publisher were not prefix-safe."""
    from relevo.brokers.kafka import publisher
    from relevo.cli.main import main as relevo

    if waves:
        publisher.KafkaPublisher.capabilities = msgspec.structs.replace(CAPABILITIES, prefix_safe=False)
    relevo(["--config", config, "relay"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--keys", default="1,10000")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cases", default="kafka,kafka-waves,rabbitmq")
    parser.add_argument("--source", default="log")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--waves", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, waves=arguments.waves)
        return
    database = os.environ["RELEVO_TEST_POSTGRES_URL"]
    brokers = {name: os.environ[f"RELEVO_TEST_{name.upper()}_URL"] for name in ("kafka", "rabbitmq")}
    print(f"machine: {machine()}\nPostgreSQL: {settings_of(database)}\nevents: {arguments.events:,}\n")
    cases = [(case, int(keys)) for case in arguments.cases.split(",") for keys in arguments.keys.split(",")]
    found: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for number in range(arguments.runs):
        for case, keys in cases if number % 2 == 0 else reversed(cases):
            name, _, waves = case.partition("-")
            rate = run(database, brokers[name], arguments.source, keys, arguments.events, waves=bool(waves))
            found[case, keys].append(rate)
            print(f"  run {number + 1} {case}, {keys:,} keys: {rate:,.0f}/s, in order", flush=True)
    rows = [["case", "keys", "events/s from start", "against the most keys"]]
    most = max(keys for _, keys in cases)
    for (case, keys), rates in found.items():
        ratio = statistics.median(rates) / statistics.median(found[case, most])
        rows.append([case, f"{keys:,}", spread(rates), f"{ratio:.2f}"])
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()
