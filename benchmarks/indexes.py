"""Which indexes does the outbox need? Page times with and without each, and what each costs a writer.

``python -m benchmarks.indexes [--rows 1000000] [--pages 31] [--sources log,mark] [--inserts 20000] [--runs 5]``

A table of so many rows, 1,000 of one transaction that commits late and 2,000 new ones. Pages are read with the
product's statement on its own connections, up to 2,000 rows or 8 MB, by a relay that owns all of 64 lanes, one of 1, 4,
16 or 64, or a sparse one (0.1 % of the rows). Where it reads: ``backlog``, nothing is settled; ``caught up``, all but
the new rows is; with ``log`` also ``late``, all but the late rows is, and ``nothing new``. Indexes: the product's; with
one on (lane, seq) beside them, the statement as it is (``+ lane``) and with a condition that the index can answer (``+
lane, used``); with ``log`` also without the one on (tx, seq), on a session that may
scan the table, without JIT. Then writers: inserts/s of one session with no index of
the source's, the product's, and the one on (lane, seq) beside them, in alternation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks import scratch
from benchmarks.drain import settings_of
from benchmarks.measure import machine, spread, table
from benchmarks.relays import RELAYS
from relevo.catalog import Catalog, pyformat
from relevo.clients.postgres import PostgresDatabase, _adapted
from relevo.script import Rows, Script, Statement
from relevo.settings import DatabaseSettings
from relevo.storage import marking, windowing
from relevo.storage.cursors import Cursor

LANES, SPARSE = 64, 63
NEW, LATE, CHUNK = 2000, 1000, 10_000
PAGE, PAGE_BYTES = 2000, 8_000_000
HOLDER = uuid4()
WITHOUT = "without (tx, seq)"

# One row in a thousand is of the sparse lane, the others are spread evenly over the other 63.
_ROWS = f"""
insert into relevo_outbox (event_id, bucket, topic, key, type, payload, settled_at, outcome)
select gen_random_uuid(), case when n %% 1000 = 0 then {SPARSE} else n %% {LANES - 1} + {LANES} * (n %% 16) end,
       't', 'k', 'bench.order.placed', convert_to(rpad('', 300, 'y'), 'UTF8'), %(at)s::timestamptz, %(outcome)s
from generate_series(%(first)s::int, %(last)s::int) as n
"""
_PREDICATE = {"mark": " where settled_at is null", "log": ""}
_OWN = {"mark": "relevo_outbox_unsettled", "log": "relevo_outbox_tx"}
_OWN_SQL = {
    "mark": "create index relevo_outbox_unsettled on relevo_outbox (seq) where settled_at is null",
    "log": "create index relevo_outbox_tx on relevo_outbox (tx, seq)",
}
_STATEMENT = {"mark": "mark.take", "log": "log.page"}


@dataclass(frozen=True)
class Owns:
    """``lanes`` of ``of``."""

    name: str
    lanes: tuple[int, ...]
    of: int


OWNERS = [
    Owns("all of 64", tuple(range(LANES)), LANES),
    *(Owns(f"1 of {count}", (0,), count) for count in (1, 4, 16, LANES)),
    Owns("sparse, 1 of 64", (SPARSE,), LANES),
]


@dataclass(frozen=True)
class Place:
    """Where a page is read from. ``cursor`` and ``window``: of the source ``log``."""

    name: str
    cursor: Cursor | None = None
    window: str = ""


@dataclass(frozen=True)
class Page:
    """Times of its reads, its rows, and the plan in words."""

    ms: list[float]
    rows: int
    plan: str


def script(source: str, owner: Owns, place: Place) -> Script[Rows]:
    """The page, as the source asks for it."""
    lanes = dict.fromkeys(owner.lanes, 1)
    if source == "log":
        reading = windowing.Reading(owner.lanes, None, (), place.cursor or Cursor(), place.window, 2**63 - 1)
        return windowing.page("postgresql", HOLDER, lanes, owner.of, reading, PAGE, PAGE_BYTES)
    bounds: dict[str, Any] = {"messages_max": PAGE, "bytes_max": PAGE_BYTES}
    return marking.take(HOLDER, lanes, owner.of, floor=0, after=0, in_flight=(), without=(), **bounds)


def text(source: str, narrowed: Owns | None) -> str:
    """The product's statement. ``narrowed``: its main rows with a condition for an index on this owner's lane."""
    found = Catalog("postgresql").text(_STATEMENT[source])
    if narrowed is not None and len(narrowed.lanes) == 1:
        before, order, after = found.rpartition("order by o.seq limit")
        if not order:
            raise SystemExit(f"{_STATEMENT[source]} reads its main rows otherwise now: this benchmark has to follow")
        found = f"{before}and o.bucket % {narrowed.of} = {narrowed.lanes[0]} {order}{after}"
    return pyformat(found)


class Bench:
    """One database, read by one source; ``settled``: what lies before the late and the new rows is (with ``mark``)."""

    def __init__(self, url: str, source: str) -> None:
        self.url, self.source = url, source
        RELAYS[source].prepare(url)

    def fill(self, rows: int, settled: bool) -> list[Place]:
        """The rows, and the places where they can be read from."""
        marked = {"at": "2026-01-01 00:00+00", "outcome": "published"} if settled else {"at": None, "outcome": None}
        unmarked = {"at": None, "outcome": None}
        with psycopg.connect(self.url, autocommit=True) as connection, psycopg.connect(self.url) as late:
            for first in range(1, rows + 1, CHUNK):
                connection.execute(_ROWS, {"first": first, "last": min(first + CHUNK - 1, rows), **marked})
            before = self._stand(connection)
            late.execute(_ROWS, {"first": 1, "last": LATE, **unmarked})
            connection.execute(_ROWS, {"first": 1, "last": NEW, **unmarked})
            beside = self._stand(connection)
            late.commit()
            now = self._stand(connection)
            connection.execute("update relevo_lane set holder = %s, epoch = 1, expires_at = 'infinity'", (HOLDER,))
            connection.execute("vacuum analyze relevo_outbox")
        if self.source == "mark":
            return [Place("caught up" if settled else "backlog")]
        window = now.snapshot
        return [
            Place("backlog", None, window),
            *(Place(*each, window) for each in (("caught up", before), ("late", beside), ("nothing new", now))),
        ]

    def _stand(self, connection: psycopg.Connection[Any]) -> Cursor:
        row = connection.execute("select pg_current_snapshot()::text, max(seq) from relevo_outbox").fetchone()
        return Cursor(*row) if row else Cursor()

    def variants(self, owner: Owns) -> Iterator[tuple[str, str]]:
        """Indexes and statement, by name; the table has those indexes while it is out."""
        yield "product", text(self.source, None)
        with self._changed(
            f"create index bench_lane on relevo_outbox ((bucket % {owner.of}), seq){_PREDICATE[self.source]}",
            "drop index bench_lane",
        ):
            yield "+ lane", text(self.source, None)
            if len(owner.lanes) == 1:
                yield "+ lane, used", text(self.source, owner)
        if self.source == "log":
            with self._changed("drop index relevo_outbox_tx", _OWN_SQL["log"]):
                yield WITHOUT, text(self.source, None)

    @contextlib.contextmanager
    def _changed(self, before: str, after: str) -> Iterator[None]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in (before, "analyze relevo_outbox"):
                connection.execute(statement.encode())
            try:
                yield
            finally:
                connection.execute(after.encode())

    def page(self, sql: str, owner: Owns, place: Place, pages: int, scans: bool) -> Page:
        """The same page, ``pages`` times after one that does not count. ``scans``: the table may be scanned; otherwise
        on a session such as the source has."""
        by_index = self.source == "log" and not scans
        ms, rows = asyncio.run(self._times(sql, owner, place, pages, by_index))
        options = PostgresDatabase(DatabaseSettings(url=self.url))._options(by_index)
        return Page(ms, rows, self._plan(sql, next(script(self.source, owner, place)), options))

    async def _times(self, sql: str, owner: Owns, place: Place, pages: int, by_index: bool) -> tuple[list[float], int]:
        database = PostgresDatabase(DatabaseSettings(url=self.url))
        database._texts[_STATEMENT[self.source]] = sql
        took: list[float] = []
        rows: Rows = ()
        try:
            for _ in range(pages + 1):
                begun = time.perf_counter()
                page = script(self.source, owner, place)
                rows = await database.run(page, read_only=True, by_index=by_index)
                took.append((time.perf_counter() - begun) * 1000)
        finally:
            await database.aclose()
        return took[1:], len(rows)

    def _plan(self, sql: str, statement: Statement, options: str) -> str:
        """The top node, its time and blocks, and by what the outbox is read (what was never executed left out)."""
        with psycopg.connect(self.url, autocommit=True, options=options) as connection:
            explain = f"explain (analyze, buffers, format json) {sql}".encode()
            row = connection.execute(explain, _adapted(statement.params)).fetchone()
        assert row is not None
        top = row[0][0]["Plan"]
        blocks = f"{top['Shared Hit Blocks']:,} hit, {top['Shared Read Blocks']:,} read"
        scans = [_scan(node) for node in _nodes(top) if _reads_outbox(node)]
        return f"{top['Node Type']}, {top['Actual Total Time']:.1f} ms, blocks {blocks}; {', '.join(scans)}"


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _reads_outbox(node: dict[str, Any]) -> bool:
    on_it = node.get("Relation Name", node.get("Index Name", "")).startswith("relevo_outbox")
    return bool(on_it and node["Actual Loops"])


def _scan(node: dict[str, Any]) -> str:
    dropped = node.get("Rows Removed by Filter", 0) * node["Actual Loops"]
    name = f"{node['Node Type']} {node.get('Index Name', '')}".strip()
    return f"{name} ({node['Actual Rows'] * node['Actual Loops']:,.0f} rows, {dropped:,.0f} passed over)"


def read(admin_url: str, source: str, rows: int, pages: int) -> None:
    found: dict[tuple[str, str], dict[str, Page]] = {}
    for settled in (False, True) if source == "mark" else (False,):
        with scratch.database(admin_url) as url:
            bench = Bench(url, source)
            places = bench.fill(rows, settled)
            for owner in OWNERS:
                for variant, sql in bench.variants(owner):
                    for place in places:
                        page = bench.page(sql, owner, place, pages, scans=variant == WITHOUT)
                        found.setdefault((place.name, owner.name), {})[variant] = page
                        print(f"  {source}, {place.name}, {owner.name}, {variant}: {page.plan}", flush=True)
    names = list(dict.fromkeys(name for page in found.values() for name in page))
    heading = ["where", "relay owns", "rows", *(f"{name}: ms" for name in names)]
    lines = [heading]
    for (place_name, owner_name), by_variant in sorted(found.items(), key=lambda each: each[0][0]):
        times = [spread(by_variant[name].ms, 2) if name in by_variant else "" for name in names]
        lines.append([place_name, owner_name, str(by_variant["product"].rows), *times])
        if len({page.rows for page in by_variant.values()}) != 1:
            raise SystemExit(f"{source}, {place_name}, {owner_name}: the variants do not read the same rows")
    print(f"\nSource {source}, milliseconds of a page:\n\n{table(lines)}\n", flush=True)


def write(admin_url: str, source: str, inserts: int, runs: int) -> None:
    """What each index costs a writer: one session, a row a transaction, without waiting for the disk."""
    lane = f"create index bench_lane on relevo_outbox ((bucket % {LANES}), seq){_PREDICATE[source]}"
    variants = {"none of the source's": [], "product": [_OWN_SQL[source]], "+ lane": [_OWN_SQL[source], lane]}
    rates: dict[str, list[float]] = {name: [] for name in variants}
    insert = RELAYS[source].insert.format(prefix="'t'", subject="'order'", key="('o' || i % 10000)", body="body")
    loop = f"""do $$ declare body text := rpad('', 300, 'y'); begin
        for i in 1..{inserts} loop {insert}; commit; end loop; end $$"""
    with scratch.database(admin_url) as url:
        Bench(url, source)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set synchronous_commit = off")
            for number in range(runs):
                for name, indexes in list(variants.items())[:: 1 if number % 2 == 0 else -1]:
                    connection.execute("truncate relevo_outbox")
                    connection.execute(f"drop index if exists bench_lane, {_OWN[source]}".encode())
                    for index in indexes:
                        connection.execute(index.encode())
                    connection.execute("checkpoint")
                    begun = time.perf_counter()
                    connection.execute(loop.encode())
                    rates[name].append(inserts / (time.perf_counter() - begun))
    rows = [["indexes beside the primary key", "inserts/s", "against none, run by run"]]
    for name, found in rates.items():
        ratios = [mine / other for mine, other in zip(found, rates["none of the source's"], strict=True)]
        rows.append([name, spread(found), spread(ratios, 3)])
    print(f"Source {source}, a writer:\n\n{table(rows)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=31)
    parser.add_argument("--sources", default="log,mark")
    parser.add_argument("--inserts", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5, help="of the writer, for each set of indexes")
    arguments = parser.parse_args()
    url = os.environ["RELEVO_TEST_POSTGRES_URL"]
    print(f"machine: {machine()}\nPostgreSQL: {settings_of(url)}")
    print(f"{arguments.rows:,} rows of 300 bytes; median [range] of {arguments.pages} pages\n")
    for source in arguments.sources.split(","):
        read(url, source, arguments.rows, arguments.pages)
        write(url, source, arguments.inserts, arguments.runs)


if __name__ == "__main__":
    main()
