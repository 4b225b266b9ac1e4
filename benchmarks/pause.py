"""What does a destination that was paused for long cost another one that shares its lanes? PostgreSQL and Kafka.

``python -m benchmarks.pause [--events 100000] [--paused 200000] [--between] [--runs 3] [--relay mark]``: alternating
runs with and without a backlog of a paused destination, one relay each. The backlog is older than the events that
count; with ``--between`` it lies between them, row by row, as when both destinations were fed at the same rate. Counted
are the other destinations' events, from the start of the relay until the last is at the broker, and the steady part of
it. Nothing of the paused one may be sent. The promise is full rate: a ratio of about 1, on a cluster where no
transaction stays open for long. One that does, in whichever database, holds the relay's floor back, and then every page
walks the paused rows that stand between the floor and its end.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import dataclass

import psycopg

from benchmarks.drain import KEYS, Bench, Result, _listener, settings_of
from benchmarks.measure import machine, spread, table
from benchmarks.relays import OURS, Relay


@dataclass(frozen=True, kw_only=True)
class WithBacklog(Relay):
    """``paused``: rows of a destination that a person paused; its topic does not even exist. ``between``: they lie
    between the events, row by row."""

    paused: int
    between: bool
    topic: str = "bench.paused"

    def fill(self, url: str, prefix: str, events: int, keys: int, size: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "insert into relevo_pause (kind, name, topic, who, why) "
                "values ('destination', %(topic)s, %(topic)s, 'bench@here', 'a benchmark')",
                {"topic": self.topic},
            )
            if self.between:
                super().fill(url, prefix, events, keys, size)
                self._backlog(connection, 0)
                self._mix(connection)
            else:
                self._backlog(connection, self.paused)
                super().fill(url, prefix, events, keys, size)

    def _backlog(self, connection: psycopg.Connection, first: int) -> None:
        connection.execute(
            "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) "
            "select relevo_uuid7(), relevo_bucket_of(convert_to('o' || i %% %(keys)s, 'UTF8'), null), %(topic)s, "
            "convert_to('o' || i %% %(keys)s, 'UTF8'), 'bench.order.placed', convert_to(rpad('', 300, 'y'), 'UTF8') "
            "from generate_series(%(first)s + 1, %(first)s + %(count)s) as i",
            {"keys": KEYS, "topic": self.topic, "count": self.paused, "first": first},
        )

    def _mix(self, connection: psycopg.Connection) -> None:
        """The sequence decides where a row lies, so all are written anew."""
        connection.execute("create temporary table mixed as select * from relevo_outbox")
        connection.execute("truncate relevo_outbox")
        connection.execute(
            "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) "
            "select event_id, bucket, topic, key, type, payload from (select *, row_number() over "
            "(partition by topic = %(topic)s order by seq)::float8 / count(*) over (partition by topic = %(topic)s) "
            "as place from mixed) as numbered order by place",
            {"topic": self.topic},
        )
        connection.execute("vacuum analyze relevo_outbox")
        connection.execute("checkpoint")

    def settled(self, url: str) -> int | None:
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "select count(*) from relevo_outbox where topic = %s and settled_at is null", (self.topic,)
            ).fetchone()
            if row != (self.paused,):
                raise SystemExit(f"{row} of {self.paused} paused rows are left: the run does not count")
            oldest = connection.execute(
                "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float8 "
                "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
            ).fetchone()
            print(f"  the oldest transaction elsewhere was open for {oldest[0] if oldest else 0:.1f} s", flush=True)
        return super().settled(url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--paused", type=int, default=200_000)
    parser.add_argument("--between", action="store_true", help="The backlog lies between the events, not before them.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--relay", default="mark", choices=list(OURS))
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    pids = {"postgres": _listener(database), "kafka": _listener(broker)}
    print(f"machine: {machine()}")
    print(f"PostgreSQL: {settings_of(database)}")
    where = "between the events" if arguments.between else "before the events"
    print(f"{arguments.events:,} events; {arguments.paused:,} rows of a paused destination {where}", flush=True)
    bench = Bench(database, broker, arguments.events)
    plain = OURS[arguments.relay]
    paused = WithBacklog(plain.name, plain.source, paused=arguments.paused, between=arguments.between)
    found: dict[bool, list[Result]] = {False: [], True: []}
    for number in range(arguments.runs):
        for relay in (plain, paused) if number % 2 == 0 else (paused, plain):
            result = bench.run(relay, pids)
            found[relay is paused].append(result)
            print(
                f"  run {number + 1} {'with' if relay is paused else 'without'} the backlog: "
                f"{result.whole_per_s:,.0f}/s whole, {result.steady_per_s:,.0f}/s steady, "
                f"first event after {result.first_s:.2f} s",
                flush=True,
            )
    rows = [["", "without", "with the paused backlog", "ratio of medians"]]
    for name, field in (("events/s from the start", "whole_per_s"), ("events/s, steady part", "steady_per_s")):
        values = {which: [getattr(result, field) for result in results] for which, results in found.items()}
        ratio = statistics.median(values[True]) / statistics.median(values[False])
        rows.append([name, spread(values[False]), spread(values[True]), f"{ratio:.2f}"])
    cost = {which: [result.database_us for result in results] for which, results in found.items()}
    ratio = statistics.median(cost[True]) / statistics.median(cost[False])
    rows.append(["PostgreSQL CPU µs/event", spread(cost[False], 1), spread(cost[True], 1), f"{ratio:.2f}"])
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
