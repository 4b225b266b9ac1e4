"""One benchmark after the other, and one report of them all.

``python -m benchmarks.suite [--full] [--only drain,append] [--report bench-report.md]``: the short list takes about a
quarter of an hour, the full one about an hour and a half. Nothing else should run on the machine meanwhile. Each
question has a file of its own here, which can be run by itself; the report holds what each of them prints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import machine

RELAYS = ("--relays", "mark,log,wal,debezium")
OTHERS = "watermill,faststream-outbox,django-reliable-outbox"
PEERS = f"log,naive,{OTHERS}"
SHORT: tuple[tuple[str, ...], ...] = (
    ("drain", *RELAYS, "--events", "100000", "--runs", "2"),
    ("latency", *RELAYS, "--seconds", "10", "--idle-seconds", "10", "--runs", "1"),
    ("drain", "--relays", PEERS, "--events", "20000", "--keys", "2000", "--runs", "1"),
    ("latency", "--relays", OTHERS, "--rates", "100", "--seconds", "5", "--idle-seconds", "5", "--runs", "1"),
    ("consume", "--events", "20000", "--runs", "2", "--from", "kafka"),
    ("append", "--seconds", "5", "--runs", "2"),
    ("brokers", "--events", "20000", "--seconds", "5", "--runs", "1"),
    ("pause", "--runs", "1"),
    ("outage", "--brokers", "kafka", "--how", "killed", "--backlog", "20000", "--away", "12", "--runs", "2"),
)
FULL: tuple[tuple[str, ...], ...] = (
    ("drain", *RELAYS, "--events", "500000"),
    ("drain", "--relays", "log,wal,debezium", "--events", "2000000", "--runs", "1"),
    ("produce", "--runs", "2"),
    ("latency", *RELAYS, "--runs", "2"),
    ("drain", "--relays", PEERS, "--events", "20000", "--keys", "2000", "--runs", "2"),
    ("latency", "--relays", f"log,{OTHERS}", "--rates", "100", "--seconds", "10", "--runs", "1"),
    ("indexes", "--rows", "300000", "--runs", "2"),
    ("scale", "--relays", "log", "--runs", "2"),
    ("memory",),
    ("consume", "--events", "40000", "--runs", "2"),
    ("consume", "--events", "20000", "--runs", "1", "--sync", "--from", "memory"),
    ("append",),
    ("brokers", "--runs", "2"),
    ("poison", "--runs", "2"),
    ("held", "--relays", "log", "--seconds", "300", "--runs", "1"),
    ("hotkey", "--runs", "1"),
    ("pause", "--runs", "1"),
    ("pause", "--between", "--runs", "1"),
    ("outage", "--brokers", "kafka", "--runs", "2"),
    ("purge", "--pairs", "1"),
    ("purge", "--pairs", "1", "--then", "partitions"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default="", help="names of benchmarks, separated by commas")
    parser.add_argument("--report", type=Path, default=Path("bench-report.md"))
    arguments = parser.parse_args()
    only = {name for name in arguments.only.split(",") if name}
    chosen = [each for each in (FULL if arguments.full else SHORT) if not only or each[0] in only]
    if not chosen:
        raise SystemExit(f"none of these is on the list: {', '.join(sorted(only))}")
    failed = []
    with arguments.report.open("w", encoding="utf-8") as report:
        report.write(f"# Benchmarks, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}\n")
        for name, *options in chosen:
            title = " ".join([name, *options])
            print(f"\n== {title}", flush=True)
            began = time.monotonic()
            if not _run(name, options, report.write):
                failed.append(title)
            report.write(f"\n({time.monotonic() - began:.0f} s)\n")
            report.flush()
    print(f"\nreport: {arguments.report}")
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


def _run(name: str, options: list[str], write: Callable[[str], object]) -> bool:
    """One benchmark; what it prints is shown as it comes, and written down."""
    write(f"\n## {' '.join([name, *options])}\n\n")
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            write(line)
    return process.returncode == 0


if __name__ == "__main__":
    main()
