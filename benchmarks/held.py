"""What does one transaction that stays open cost? Somebody's forgotten ``begin``, with a row written, beside the relay.

``python -m benchmarks.held [--relays log,mark] [--events 200000] [--rate 1000] [--seconds 60] [--runs 3]``: a backlog
is drained, and events are followed at an even rate, in alternation with and without a transaction in the same database
that was begun before the first event was written and stays open to the end. As ``drain`` and ``latency`` measure it.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import dataclass, field
from typing import Any

import psycopg

from benchmarks import latency
from benchmarks.drain import Bench, _listener, settings_of
from benchmarks.measure import machine, spread, table
from benchmarks.relays import OURS, Relay


@dataclass(frozen=True)
class Beside(Relay):
    """The relay, beside a transaction that stays open."""

    open: list[psycopg.Connection[Any]] = field(default_factory=list, compare=False)

    def prepare(self, url: str) -> None:
        super().prepare(url)
        connection = psycopg.connect(url)
        connection.execute("create table forgotten (n int)")
        connection.execute("insert into forgotten values (1)")
        self.open.append(connection)

    def end(self) -> None:
        while self.open:
            self.open.pop().close()


@dataclass
class Found:
    whole: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--relays", default="log,mark", help=", ".join(OURS))
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    pids = {"postgres": _listener(database), "kafka": _listener(broker)}
    print(f"machine: {machine()}\nPostgreSQL: {settings_of(database)}\nevents: {arguments.events:,}\n")
    bench, empty = Bench(database, broker, arguments.events), Bench(database, broker, 0)
    found: dict[tuple[str, bool], Found] = {}
    for number in range(arguments.runs):
        for name in arguments.relays.split(","):
            for held in (False, True) if number % 2 == 0 else (True, False):
                plain = OURS[name]
                relay = Beside(plain.name, plain.source) if held else plain
                one = found.setdefault((name, held), Found())
                drained = bench.run(relay, pids)
                followed = latency.run(empty, relay, [arguments.rate], arguments.seconds, 1.0)
                p50, _, p99 = followed.quantiles_ms[arguments.rate]
                one.whole.append(drained.whole_per_s)
                one.steady.append(drained.steady_per_s)
                one.p50.append(p50)
                one.p99.append(p99)
                print(
                    f"  run {number + 1} {name}{' beside an open transaction' if held else ''}: "
                    f"{drained.whole_per_s:,.0f}/s whole, {drained.steady_per_s:,.0f}/s steady, "
                    f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, missing {followed.missing}",
                    flush=True,
                )
    print(f"\n{report(found)}")


def report(found: dict[tuple[str, bool], Found]) -> str:
    rows = [["relay", "", "events/s from start", "steady", "p50 ms", "p99 ms", "steady against without"]]
    for (name, held), one in sorted(found.items()):
        without = found[name, False]
        ratio = statistics.median(one.steady) / statistics.median(without.steady)
        rows.append(
            [
                *(name, "open" if held else "", spread(one.whole), spread(one.steady)),
                *(spread(one.p50, 1), spread(one.p99, 1), f"{ratio:.2f}"),
            ]
        )
    return table(rows)


if __name__ == "__main__":
    main()
