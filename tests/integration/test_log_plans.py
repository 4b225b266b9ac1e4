"""How PostgreSQL carries out a page of the source ``log``, on a table that is empty and on one that has grown.

A page's late rows must come by the index on ``(tx, seq)`` and its main rows by the primary key, whatever statistics
say: the planner's own choice cost 1.2 ms a poll, and more with every row."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relevo.catalog import Catalog, pyformat
from relevo.clients.postgres import PostgresDatabase, _adapted
from relevo.script import Rows, Script, Statement
from relevo.storage import grouping, windowing
from relevo.storage.cursors import Cursor
from relevo.storage.readers import Reader
from tests.support.log_stores import log_store


def page_statement(cursor: Cursor, window: str) -> Statement:
    lanes = dict.fromkeys(range(64), 0)
    reading = windowing.Reading(tuple(lanes), None, (), cursor, window, 2**63 - 1)
    script = windowing.page("postgresql", uuid4(), lanes, 64, reading, 2000, 8_000_000)
    statement = next(script)
    while statement.name != "log.page":
        statement = script.send([])
    return statement


def look_statement(cursor: Cursor, window: str) -> Statement:
    """The same of a reader that follows, up to what the statement itself sees."""
    lanes = dict.fromkeys(range(64), 0)
    reading = windowing.Reading(tuple(lanes), None, (), cursor, None, 2**63 - 1)
    return next(windowing.look(uuid4(), lanes, 64, reading, 2000, 8_000_000, None))


def group_page_statement(cursor: Cursor, window: str) -> Statement:
    """The same for a group of consumers, which reads what has a marker too, and some topics."""
    member = grouping.Member("billing", uuid4(), ["t1", "t3"], "here", 1, 5.0)
    lanes = dict.fromkeys(range(64), 0)
    reader = Reader("*", frozenset(), set(lanes), cursor)
    script = grouping.page(member, lanes, 64, reader, window, 2**63 - 1, 2000, 8_000_000)
    statement = next(script)
    while statement.name != "groups.page":
        statement = script.send([])
    return statement


def explain(connection: psycopg.Connection[Any], statement: Statement, how: str) -> str:
    text = pyformat(Catalog("postgresql").text(statement.name))
    with connection.transaction():
        connection.execute(
            "select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)"
        )
        connection.execute("select set_config('plan_cache_mode', %s, true)", (how,))
        rows = connection.execute(f"explain (costs off) {text}", _adapted(statement.params), prepare=True).fetchall()
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize("how", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("grown", ["never analyzed", "grown, not analyzed", "grown and analyzed"])
@pytest.mark.parametrize("page", [page_statement, group_page_statement, look_statement])
def test_a_page_goes_by_its_indexes(
    pg_database: str, page: Callable[[Cursor, str], Statement], grown: str, how: str
) -> None:
    """Late rows by ``(tx, seq)``, main rows by the primary key; nowhere a scan of the table or a bitmap."""
    store = log_store(pg_database)
    with psycopg.connect(store.url, autocommit=True) as connection:
        if grown != "never analyzed":
            connection.execute(
                "insert into relevo_outbox (event_id, bucket, topic, type) "
                "select gen_random_uuid(), n % 1024, 't' || n % 5, 'a.b' from generate_series(1, 30000) n"
            )
        if grown == "grown and analyzed":
            connection.execute("analyze relevo_outbox")
        (now, newest) = connection.execute(
            "select pg_current_snapshot()::text, coalesce(max(seq), 0) from relevo_outbox"
        ).fetchone() or ("", 0)
        xmax = int(now.split(":")[1])
        since = Cursor(f"{xmax - 3}:{xmax}:{xmax - 3},{xmax - 2}", max(1000, newest // 2))
        plan = explain(connection, page(since, now), how)
    on_outbox = [line.strip() for line in plan.splitlines() if " on relevo_outbox_p" in line]
    assert ("Scan Backward using relevo_outbox_p0_pkey" in on_outbox[-1]) == (page is look_statement), (
        plan
    )  # its newest
    on_outbox = on_outbox[:3] if page is look_statement else on_outbox
    assert len(on_outbox) == 3, plan
    assert [line.count("tx_seq_idx") for line in on_outbox] == [1, 1, 0], plan
    assert on_outbox[2].count("pkey") == 1 and "Seq Scan" not in plan and "Bitmap" not in plan, plan


def test_a_late_set_of_many_pages_is_read_in_order(pg_database: str) -> None:
    """A page of a huge late transaction touches about a page's rows, not the rest of it: no sort of what is left."""
    store = log_store(pg_database)
    with psycopg.connect(store.url, autocommit=True) as connection:
        with connection.transaction():
            (xid,) = connection.execute("select pg_current_xact_id()::text").fetchone() or ("",)
            connection.execute(
                "insert into relevo_outbox (event_id, bucket, topic, type) "
                "select gen_random_uuid(), 1, 't', 'a.b' from generate_series(1, 50000)"
            )
        (now,) = connection.execute("select pg_current_snapshot()::text").fetchone() or ("",)
        since = Cursor(f"{xid}:{int(xid) + 1}:{xid}", 60_000, now, 20_000)
        statement = page_statement(since, now)
        connection.execute("update relevo_lane set holder = %s", (statement.params["holder"],))
        text = pyformat(Catalog("postgresql").text("log.page"))
        with connection.transaction():
            connection.execute("set local enable_seqscan = off; set local enable_bitmapscan = off")
            rows = connection.execute(
                f"explain (analyze, buffers, timing off) {text}", _adapted(statement.params)
            ).fetchall()
    plan = "\n".join(row[0] for row in rows)
    scans = [line for line in plan.splitlines() if "tx_seq_idx" in line and "actual" in line]
    assert any("rows=2000 " in line or "rows=2000.00 " in line for line in scans), plan


def test_a_page_of_several_partitions_goes_by_their_indexes(pg_database: str) -> None:
    """After retention cut the outbox: in order over all of them, and the main rows only where their numbers are."""
    store = log_store(pg_database)
    add = (
        "insert into relevo_outbox (event_id, bucket, topic, type) "
        "select gen_random_uuid(), n % 1024, 't', 'a.b' from generate_series(1, 2000) n"
    )
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(add)
        for step in ("relevo_cut_outbox(1000, 5000)", "relevo_prove_outbox_cut(1000)", "relevo_cut_outbox(1000, 5000)"):
            connection.execute(f"select {step}".encode())
        connection.execute(add)
        (now, newest) = connection.execute(
            "select pg_current_snapshot()::text, max(seq) from relevo_outbox"
        ).fetchone() or ("", 0)
        assert newest > 5000, "the first partition was cut off"
        xmax = int(now.split(":")[1])
        since = Cursor(f"{xmax - 3}:{xmax}:{xmax - 3},{xmax - 2}", newest - 100)
        plan = explain(connection, page_statement(since, now), "force_custom_plan")
    scans = [line.strip() for line in plan.splitlines() if re.search(r" on relevo_outbox_p\d", line)]
    assert {re.search(r"p\d", line.split(" on ")[1]).group() for line in scans} == {"p0", "p1", "p2"}, plan  # type: ignore[union-attr]
    assert all("Index Scan using" in line for line in scans) and "Seq Scan" not in plan, plan
    assert [line for line in scans if "pkey" in line and "p0" in line] == [], plan


async def test_a_page_is_planned_once(pg_database: str) -> None:
    """Left to itself the server plans it anew each time, for its arrays: 1.3 ms of the 2.5 that a small page took."""
    store = log_store(pg_database)
    database = PostgresDatabase(store.settings, connections_max=1)

    def often() -> Script[Rows]:
        for _ in range(30):
            yield page_statement(Cursor(), "1:1:")
        return (yield Statement("test.plans"))

    name = "select generic_plans, custom_plans from pg_prepared_statements where statement like '%%octet_length%%'"
    database._texts["test.plans"] = name
    try:
        ((generic, custom),) = await database.run(often(), read_only=True, by_index=True)
    finally:
        await database.aclose()
    assert custom == 0 and generic >= 20


@pytest.mark.parametrize("by_index", [True, False])
async def test_no_statement_of_ours_starts_workers_or_is_compiled(pg_database: str, by_index: bool) -> None:
    """A page's generic plan looks dear on a large table: the server started parallel workers for each, and a page took
    40 ms instead of 9. Here parallel plans and compilation look free, to this database's other sessions."""
    store = log_store(pg_database)
    free = {
        **dict.fromkeys(("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"), 0),
        **dict.fromkeys(("min_parallel_index_scan_size", "jit_above_cost"), 0),
        "max_parallel_workers_per_gather": 2,
        "jit": "on",
    }
    with psycopg.connect(store.url, autocommit=True) as connection:
        for name, value in free.items():
            connection.execute(f"alter database {connection.info.dbname} set {name} = {value}".encode())
        connection.execute(
            "insert into relevo_outbox (event_id, bucket, topic, type) "
            "select gen_random_uuid(), n % 1024, 't', 'a.b' from generate_series(1, 30000) n"
        )
        connection.execute("analyze relevo_outbox")
    text = "explain select count(*) from relevo_outbox where topic = any(cast(%(topics)s as text[]))"

    def ask() -> Script[Rows]:
        return (yield Statement("test.count", {"topics": ["t"]}))

    database = PostgresDatabase(store.settings, connections_max=1)
    database._texts["test.count"] = text
    with psycopg.connect(store.url) as connection:
        others = "\n".join(row[0] for row in connection.execute(text, {"topics": ["t"]}))
    try:
        ours = "\n".join(row[0] for row in await database.run(ask(), read_only=True, by_index=by_index))
    finally:
        await database.aclose()
    assert "Gather" in others, others
    assert "Gather" not in ours and "JIT" not in ours, ours
