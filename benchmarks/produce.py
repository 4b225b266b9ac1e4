"""How fast can a Python process hand messages to Kafka at all? The client alone: no database, no relay.

``python -m benchmarks.produce [--messages 300000] [--runs 3] [--linger-ms 0.5]``: one loop calls the client's
``produce`` with 300 bytes under 10,000 keys, settings as the relay's (acks=all, idempotent), a thread serves the
delivery reports. With the six CloudEvents headers that every message of Relevo has, with two, with none, and without a
report of each message, which no relay can do. What a relay costs beyond this is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.measure import machine, spread, table
from relevo.brokers.kafka.options import parse

SIX = [
    ("ce_id", b"01a22c8b-afd0-7748-97f4-47776773f79d"),
    ("ce_time", b"2026-01-01T00:00:00.000000+00:00"),
    ("ce_specversion", b"1.0"),
    ("ce_source", b"urn:relevo:bench"),
    ("ce_type", b"bench.order.placed"),
    ("content-type", b"application/json"),
]
CASES = {"six headers": (6, True), "two headers": (2, True), "no headers": (0, True), "six, unreported": (6, False)}
AHEAD = 6_000
"""Messages under way at most, as of the relay's pages."""


def child(url: str, topic: str, messages: int, linger_ms: float, headers: int, *, reports: bool) -> None:
    """One run in this process; its figures as JSON."""
    settings = parse(url, {"linger.ms": linger_ms}).producer(500_000)
    producer = Producer({**settings, "log_level": 0})
    reported, over = 0, threading.Event()

    def report(error: object, _: object) -> None:
        nonlocal reported
        assert error is None, error
        reported += 1

    def serve() -> None:
        while not over.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=serve)
    thread.start()
    payload, each, cpu, began = b"x" * 300, SIX[:headers], time.process_time(), time.monotonic()
    more: dict[str, Any] = {"on_delivery": report} if reports else {}
    for number in range(messages):
        producer.produce(topic, payload, b"o%d" % (number % 10_000), headers=list(each), **more)
        if number % 250 == 0:
            while len(producer) > AHEAD:
                time.sleep(0.001)
    while len(producer):
        time.sleep(0.001)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    over.set()
    thread.join()
    assert reported == (messages if reports else 0)
    print(json.dumps({"per_s": messages / took, "cpu_us": cpu / messages * 1e6}))


def run(url: str, messages: int, linger_ms: float, case: str) -> dict[str, float]:
    topic = f"bench.{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": url.removeprefix("kafka://")})
    admin.create_topics([NewTopic(topic, 12, 1)])[topic].result(20)
    try:
        words = [topic, "--child", case, "--messages", str(messages), "--linger-ms", str(linger_ms)]
        done = subprocess.run([sys.executable, "-m", "benchmarks.produce", *words], stdout=subprocess.PIPE, check=True)
    finally:
        admin.delete_topics([topic])[topic].result(20)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("topic", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--linger-ms", type=float, default=0.5)
    arguments = parser.parse_args()
    url = os.environ["RELEVO_TEST_KAFKA_URL"]
    if arguments.child:
        headers, reports = CASES[arguments.child]
        child(url, arguments.topic, arguments.messages, arguments.linger_ms, headers, reports=reports)
        return
    print(f"machine: {machine()}\n{arguments.messages:,} messages of 300 bytes, linger {arguments.linger_ms:g} ms\n")
    found: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    for number in range(arguments.runs):
        for case in CASES if number % 2 == 0 else reversed(CASES):
            found[case].append(run(url, arguments.messages, arguments.linger_ms, case))
            print(f"  run {number + 1} {case}: {found[case][-1]}", flush=True)
    rows = [["", "messages/s", "CPU µs/message of the process"]]
    for case, runs in found.items():
        rows.append([case, spread([each["per_s"] for each in runs]), spread([each["cpu_us"] for each in runs], 1)])
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()
