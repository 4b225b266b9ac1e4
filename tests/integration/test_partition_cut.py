"""Cutting the outbox's tail as docs/decisions/0001 says: on a real PostgreSQL, with that page's own statements."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

from relevo.ops.migrate import migrate
from relevo.settings import load

RECORD = Path(__file__).resolve().parents[2] / "docs" / "decisions" / "0001-outbox-partitioned-by-seq.md"
APPEND = "insert into relevo_outbox (event_id, bucket, topic, type) values (gen_random_uuid(), 1, 'shop', 'shop.sold')"


def test_the_tail_is_cut_without_a_scan_and_without_losing_a_row(pg_database: str) -> None:
    """Three steps with rows there and writers in between: the second attach needs no scan of the old rows, every row
    stays where it was, indexes included, and the next ones go to the new tail."""
    migrate(load(environ={}, overrides={"database.url": pg_database}))
    promise, proof, swap = re.findall(r"^```sql\n(.*?)^```", RECORD.read_text(), re.MULTILINE | re.DOTALL)
    notices: list[str] = []
    with psycopg.connect(pg_database, autocommit=True) as admin, psycopg.connect(pg_database) as writer:
        admin.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        admin.execute("set client_min_messages = debug1")
        writer.execute(APPEND)
        writer.commit()
        admin.execute(promise.encode())
        writer.execute(APPEND)  # open while the rows are proved
        admin.execute(proof.encode())
        writer.commit()
        admin.execute(swap.encode())
        assert any("is implied by existing constraints" in notice for notice in notices), notices

        admin.execute("alter table relevo_outbox alter column seq restart with 1000")
        writer.execute(APPEND)
        writer.commit()
        placed = admin.execute("select tableoid::regclass::text, seq from relevo_outbox order by seq").fetchall()
        assert placed == [("relevo_outbox_p0", 1), ("relevo_outbox_p0", 2), ("relevo_outbox_p1", 1000)]
        indexes = admin.execute(
            "select inhparent::regclass::text, count(*) from pg_inherits where inhparent in "
            "('relevo_outbox_pkey'::regclass, 'relevo_outbox_tx'::regclass) group by 1 order by 1"
        ).fetchall()
        assert indexes == [("relevo_outbox_pkey", 2), ("relevo_outbox_tx", 2)]


def test_a_writer_that_reaches_a_promised_bound_fails_loudly(pg_database: str) -> None:
    """Between promise and swap nothing can land where the new tail will be."""
    migrate(load(environ={}, overrides={"database.url": pg_database}))
    promise = re.findall(r"^```sql\n(.*?)^```", RECORD.read_text(), re.MULTILINE | re.DOTALL)[0]
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(promise.encode())
        connection.execute("alter table relevo_outbox alter column seq restart with 1000")
        try:
            connection.execute(APPEND)
        except psycopg.errors.CheckViolation as error:
            assert "relevo_outbox_p0_bound" in str(error)
        else:
            raise AssertionError("a row was written beyond the bound")
