"""What a purge costs everybody else: publish latency with and without one, over a large table.

``python -m benchmarks.purge [--rows 1000000] [--seconds 20] [--rate 200]``: outbox and inbox are filled with that many
old rows; a relay with the embedded broker hands over what a writer appends at ``rate`` a second. Latency is from the
insert to the settlement, by the database's clock; a writer's is its whole transaction. The purge is `relevo purge`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks.measure import machine, table
from relevo.ops.migrate import migrate
from relevo.settings import load

FILL = """
insert into relevo_outbox (event_id, bucket, topic, key, type, payload, created_at, settled_at, outcome)
select gen_random_uuid(), n % 1024, 'shop.order', 'k', 'shop.order.placed', convert_to(repeat('x', 200), 'UTF8'),
       now() - interval '30 days', now() - interval '30 days', 'published'
from generate_series(1, {rows}) as n;
insert into relevo_inbox (consumer, event_id, processed_at)
select 'billing', gen_random_uuid(), now() - interval '30 days' from generate_series(1, {rows});
"""
APPEND = (
    "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) "
    "values (gen_random_uuid(), 1, 'bench', 'k', 'bench.done', '{}') returning seq"
)
LATENCY = """
select percentile_disc(0.5) within group (order by late), percentile_disc(0.99) within group (order by late), max(late)
from (select extract(epoch from settled_at - created_at)::float * 1000 as late from relevo_outbox
      where topic = 'bench' and seq between %s and %s) as rows
"""


def work(url: str, seconds: float, rate: float) -> tuple[float, float, float, float]:
    """Append for ``seconds``; latency in milliseconds: p50, p99, largest, and the writer's largest."""
    slowest, first, last = 0.0, 0, 0
    with psycopg.connect(url, autocommit=True) as connection:
        begin = time.monotonic()
        for number in range(int(seconds * rate)):
            time.sleep(max(0.0, begin + number / rate - time.monotonic()))
            before = time.monotonic()
            row = connection.execute(APPEND).fetchone()
            slowest = max(slowest, time.monotonic() - before)
            assert row is not None
            first, last = first or row[0], row[0]
        unsettled = (
            f"select 1 from relevo_outbox where topic = 'bench' and settled_at is null and seq <= {last} limit 1"
        )
        while connection.execute(unsettled.encode()).fetchone():
            time.sleep(0.05)
        found = connection.execute(LATENCY.encode(), (first, last)).fetchone()
    assert found is not None
    return float(found[0]), float(found[1]), float(found[2]), slowest * 1000


@contextlib.contextmanager
def relevo(config: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "relevo", "--config", str(config), *arguments],
        env=environment,
        cwd=config.parent,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=200.0)
    arguments = parser.parse_args()
    server = os.environ["RELEVO_TEST_POSTGRES_URL"]
    name = f"bench_purge_{secrets.token_hex(4)}"
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"create database {name}".encode())
        try:
            with tempfile.TemporaryDirectory() as folder:
                _measure(url, Path(folder), arguments)
        finally:
            admin.execute(f"drop database {name} with (force)".encode())


def _measure(url: str, folder: Path, arguments: argparse.Namespace) -> None:
    config = folder / "relevo.toml"
    config.write_text(
        f'[database]\nurl = "{url}"\n[broker]\nurl = "embedded:broker.db"\n[retention]\nevery_s = 0\n', "utf-8"
    )
    migrate(load(config, environ={}))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FILL.format(rows=arguments.rows).encode())
        connection.execute("vacuum analyze")
    print(f"machine: {machine()}")
    rows = [["", "p50 ms", "p99 ms", "max ms", "writer max ms"]]
    with relevo(config, "relay"):
        work(url, 2.0, arguments.rate)
        rows.append(["no purge", *(f"{value:,.1f}" for value in work(url, arguments.seconds, arguments.rate))])
        with relevo(config, "purge", "--yes") as purge:
            rows.append(["purge", *(f"{value:,.1f}" for value in work(url, arguments.seconds, arguments.rate))])
            over = purge.poll() is not None
    with psycopg.connect(url) as connection:
        left = connection.execute("select count(*) from relevo_outbox where topic <> 'bench'").fetchone()
        deadlocks = connection.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone()
    assert left is not None and deadlocks is not None
    print(table(rows))
    print(
        f"{arguments.rows - left[0]:,} outbox rows purged meanwhile, {'all of it' if over else 'not finished'}, ",
        end="",
    )
    print(f"{deadlocks[0]} deadlocks")


if __name__ == "__main__":
    main()
