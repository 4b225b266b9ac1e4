"""Do more relays drain faster? The same backlog by one, two and three relay processes that share the lanes.

``python -m benchmarks.scale [--events 200000] [--relays mark,log] [--copies 1,2,3] [--runs 3]``: as ``drain``, with all
of them on this machine's cores, beside the database and the broker. The source ``wal`` has one reader at a time: its
other processes stand by.
"""

from __future__ import annotations

import argparse
import os

from benchmarks.drain import Bench, Result, _listener, settings_of
from benchmarks.measure import machine, spread, table
from benchmarks.relays import RELAYS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--copies", default="1,2,3")
    parser.add_argument("--relays", default="mark,log")
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    pids = {"postgres": _listener(database), "kafka": _listener(broker)}
    bench = Bench(database, broker, arguments.events)
    print(f"machine: {machine()}\nPostgreSQL: {settings_of(database)}\nevents: {arguments.events:,}\n")
    cases = [(name, int(copies)) for name in arguments.relays.split(",") for copies in arguments.copies.split(",")]
    results: dict[tuple[str, int], list[Result]] = {case: [] for case in cases}
    for number in range(arguments.runs):
        for name, copies in cases:
            result = bench.run(RELAYS[name], pids, copies)
            results[name, copies].append(result)
            print(f"  run {number + 1} {name} x{copies}: {result.whole_per_s:,.0f} events/s from start", flush=True)
    rows = [["relay", "processes", "events/s from start", "steady events/s", "against the first", "RSS MB in all"]]
    for (name, copies), runs in results.items():
        first = results[name, cases[0][1]]
        ratios = [one.whole_per_s / other.whole_per_s for one, other in zip(runs, first, strict=True)]
        rows.append(
            [
                name,
                str(copies),
                spread([run.whole_per_s for run in runs]),
                spread([run.steady_per_s for run in runs]),
                spread(ratios, 2),
                spread([run.rss_mb for run in runs]),
            ]
        )
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()
