"""What does an append cost a writer? Commits/s of the same transaction with a plain insert, and with ``outbox.add``.

``python -m benchmarks.append [--seconds 8] [--runs 3] [--writers 8] [--sources mark,log]``: writers are processes with
one psycopg connection each, on the same cores as the database (fsync and synchronous_commit as it has them). A
transaction inserts an order; ``plain`` inserts a second row, payload and key of the same size, into a table with a
primary key; ``by hand`` encodes the event and writes the outbox of most articles, with columns as Debezium's event
router expects; ``add`` writes the event with ``outbox.add`` in its place, on the indexes of that source; ``alone``
writes no second row. ``unchecked`` is ``outbox.add`` with ``validate=False``; ``ten lines`` an event of ten lines with
texts, numbers and decimals, a time and a UUID, which are compared one by one. ``… in a pipeline`` sends the same
statements and the commit in psycopg's pipeline mode. The variants alternate; the tables are emptied and a checkpoint
made before each. The ratios are of one round of runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing.synchronize import Barrier
from typing import Any

import msgspec
import psycopg

from benchmarks import scratch
from benchmarks.drain import settings_of
from benchmarks.measure import machine, spread, table
from relevo import Outbox, event
from relevo.ops.migrate import migrate
from relevo.settings import DatabaseSettings, RelaySettings, Settings

TABLES = """
create table orders (id bigint generated always as identity primary key, customer int, cents int, note text);
create table plain (id bigint generated always as identity primary key, key bytea, type text, payload bytea);
create table by_hand (id uuid primary key, aggregatetype text not null, aggregateid text not null, type text not null,
  payload bytea, headers jsonb, created_at timestamptz not null default now());
create index on by_hand (created_at);
"""
NOTE = "y" * 200
ORDER = "insert into orders (customer, cents, note) values (%s, %s, %s)"
BY_HAND = (
    "insert into by_hand (id, aggregatetype, aggregateid, type, payload, headers) "
    "values (%s, %s, %s, %s, %s, cast(%s as jsonb))"
)
PLAIN = "insert into plain (key, type, payload) values (%s, %s, %s)"

outbox = Outbox(validate=True)
unchecked = Outbox(validate=False)
Second = Callable[[psycopg.Connection[Any], int], object]


@event("bench.order.appended", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    note: str


@dataclass(frozen=True)
class Line:
    sku: str
    count: int
    price: Decimal


@event("bench.order.listed", key="order_id")
@dataclass(frozen=True)
class OrderListed:
    order_id: int
    customer: uuid.UUID
    at: datetime
    lines: tuple[Line, ...]
    total: Decimal


CUSTOMER = uuid.UUID("6f1d7f5e-3b52-5c1d-9b0a-8f5f0a4c2e11")


def listed(number: int) -> OrderListed:
    lines = tuple(Line(f"SKU-{number}-{each}", each, Decimal(number) / 100) for each in range(10))
    return OrderListed(number, CUSTOMER, datetime.now(UTC), lines, Decimal(number) / 10)


def nothing(connection: psycopg.Connection[Any], number: int) -> None:
    """The order alone."""


def plain(connection: psycopg.Connection[Any], number: int) -> None:
    body = f'{{"order_id":{number},"note":"{NOTE}"}}'.encode()
    connection.execute(PLAIN, (str(number).encode(), "bench.order.appended", body))


def by_hand(connection: psycopg.Connection[Any], number: int) -> None:
    body = msgspec.json.encode(OrderPlaced(number, NOTE))
    connection.execute(BY_HAND, (uuid.uuid4(), "bench.order", str(number), "bench.order.appended", body, "{}"))


def add(connection: psycopg.Connection[Any], number: int) -> None:
    outbox.add(connection, OrderPlaced(number, NOTE))


def add_unchecked(connection: psycopg.Connection[Any], number: int) -> None:
    unchecked.add(connection, OrderPlaced(number, NOTE))


def add_lines(connection: psycopg.Connection[Any], number: int) -> None:
    outbox.add(connection, listed(number))


def add_lines_unchecked(connection: psycopg.Connection[Any], number: int) -> None:
    unchecked.add(connection, listed(number))


SECOND: dict[str, Second] = {
    "alone": nothing,
    "plain": plain,
    "by hand": by_hand,
    "add": add,
    "add unchecked": add_unchecked,
    "add ten lines": add_lines,
    "add ten lines unchecked": add_lines_unchecked,
}


def write(url: str, what: str, pipelined: bool, seconds: float, ready: Barrier, counts: Any, number: int) -> None:
    """One writer: transactions for so many seconds, counted into ``counts[number]``."""
    second = SECOND[what]
    with psycopg.connect(url) as connection:

        def once(n: int) -> None:
            connection.execute(ORDER, (n, 100, NOTE))
            second(connection, n)
            connection.commit()

        for n in range(10):
            once(n)
        ready.wait()
        end = time.monotonic() + seconds
        n = 0
        while time.monotonic() < end:
            n += 1
            if pipelined:
                with connection.pipeline():
                    once(n)
            else:
                once(n)
        counts[number] = n


@contextmanager
def databases(admin_url: str, sources: list[str]) -> Iterator[dict[str, str]]:
    """One for each source, with its indexes."""
    with ExitStack() as stack:
        urls = {source: stack.enter_context(scratch.database(admin_url)) for source in sources}
        for source, url in urls.items():
            settings = Settings(
                database=DatabaseSettings(url=url),
                relay=RelaySettings(source=source),  # type: ignore[arg-type]
            )
            migrate(settings)
            with psycopg.connect(url) as connection:
                connection.execute(TABLES)
        yield urls


def measure(url: str, what: str, pipelined: bool, seconds: float, writers: int) -> float:
    """Commits/s of all writers together."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("truncate orders, plain, by_hand, relevo_outbox")
        connection.execute("checkpoint")
    context = multiprocessing.get_context("spawn")
    ready, counts = context.Barrier(writers), context.Array("q", writers)
    running = [
        context.Process(target=write, args=(url, what, pipelined, seconds, ready, counts, number))
        for number in range(writers)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()
        if process.exitcode:
            raise SystemExit("a writer failed")
    return float(sum(counts[:])) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--sources", default="mark,log")
    arguments = parser.parse_args()
    database, sources = os.environ["RELEVO_TEST_POSTGRES_URL"], arguments.sources.split(",")
    print(f"machine: {machine()}\nPostgreSQL: {settings_of(database)}")
    print(f"{arguments.writers} writers, {arguments.seconds:g} s a run, {arguments.runs} alternating runs\n")
    first = sources[0]
    cases = [(what, first, False) for what in ("alone", "plain", "by hand")]
    cases += [("add", source, False) for source in sources]
    cases += [(what, first, False) for what in ("add unchecked", "add ten lines", "add ten lines unchecked")]
    cases += [("plain", first, True), ("by hand", first, True), ("add", sources[-1], True)]
    rates: dict[tuple[str, str, bool], list[float]] = {case: [] for case in cases}
    with databases(database, sources) as urls:
        for number in range(arguments.runs):
            for case in cases:
                what, source, pipelined = case
                rates[case].append(measure(urls[source], what, pipelined, arguments.seconds, arguments.writers))
                print(f"  run {number + 1} {name_of(case)}: {rates[case][-1]:,.0f} commits/s", flush=True)
    rows = [["the order and", "commits/s", "against plain", "against plain in a pipeline"]]
    for case, found in rates.items():
        against = [
            [mine / other for mine, other in zip(found, rates["plain", first, pipelined], strict=True)]
            for pipelined in (False, True)
        ]
        rows.append([name_of(case), spread(found), spread(against[0], 3), spread(against[1], 3)])
    print(f"\n{table(rows)}\n")
    for what in ("add", "add ten lines"):
        ratios = [
            on / off
            for on, off in zip(rates[what, first, False], rates[f"{what} unchecked", first, False], strict=True)
        ]
        print(f"{what}: checked against unchecked {spread(ratios, 3)}")


def name_of(case: tuple[str, str, bool]) -> str:
    what, source, pipelined = case
    return f"{what}{f', {source}' if what == 'add' else ''}{', in a pipeline' if pipelined else ''}"


if __name__ == "__main__":
    main()
