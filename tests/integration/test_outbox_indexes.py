"""Every index of the outbox is paid by every writer: which there are for each source, and what each is needed for."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relevo.catalog import Catalog, pyformat
from relevo.clients.postgres import _adapted
from relevo.script import Statement
from relevo.storage import marking
from tests.support.schema import create_schema

ROWS = 20_000
WAITING = 50


@pytest.mark.parametrize(
    ("source", "indexes"),
    [
        ("mark", {"relevo_outbox_pkey": "(seq)", "relevo_outbox_unsettled": "(seq) WHERE (settled_at IS NULL)"}),
        ("log", {"relevo_outbox_pkey": "(seq)", "relevo_outbox_tx": "(tx, seq)"}),
        ("wal", {"relevo_outbox_pkey": "(seq)"}),
    ],
)
def test_each_source_has_its_indexes_and_no_others(pg_database: str, source: str, indexes: dict[str, str]) -> None:
    """The primary key, and what the source reads by."""
    create_schema(pg_database, source=source)
    with psycopg.connect(pg_database) as connection:
        found = connection.execute(
            "select indexname, substring(indexdef from 'USING btree (.*)') from pg_indexes "
            "where tablename = 'relevo_outbox'"
        ).fetchall()
    assert dict(found) == indexes


def test_mark_needs_both_of_its_indexes(pg_database: str) -> None:
    """Behind a settled history of 20,000 rows a page of 50 is read, and settled, by its index; without the one on what
    is unsettled, or without the primary key, the whole table is."""
    create_schema(pg_database)
    with psycopg.connect(pg_database) as connection:
        connection.execute(
            "insert into relevo_outbox (event_id, bucket, topic, type, payload, settled_at, outcome) "
            "select gen_random_uuid(), n %% 1024, 't' || n %% 3, 'a.b', decode(repeat('61', 300), 'hex'), "
            "       case when n <= %(old)s then clock_timestamp() end, case when n <= %(old)s then 'published' end "
            "from generate_series(1, %(all)s) n",
            {"all": ROWS, "old": ROWS - WAITING},
        )
        connection.execute("update relevo_lane set holder = %s, epoch = 1, expires_at = 'infinity'", (HOLDER,))
        connection.execute("analyze relevo_outbox")
        page = _statement()
        settle = Statement("mark.settle", {"outcome": "published", "seqs": list(range(ROWS - WAITING + 1, ROWS + 1))})
        connection.commit()
        by_index = _blocks(connection, page), _blocks(connection, settle)
        connection.execute("drop index relevo_outbox_unsettled")
        without_unsettled = _blocks(connection, page)
        connection.rollback()
        connection.execute("drop index relevo_outbox_unsettled")  # else settling would use it
        connection.execute("alter table relevo_outbox drop constraint relevo_outbox_pkey")
        without_key = _blocks(connection, settle)
        connection.rollback()
    assert by_index[0] * 3 < without_unsettled, (by_index, without_unsettled)
    assert by_index[1] * 3 < without_key, (by_index, without_key)


HOLDER = uuid4()


def _statement() -> Statement:
    lanes = dict.fromkeys(range(64), 1)
    script = marking.take(
        HOLDER,
        lanes,
        64,
        floor=0,
        after=0,
        in_flight=[],
        messages_max=2000,
        bytes_max=8_000_000,
        without=[],
    )
    return next(script)


def _blocks(connection: psycopg.Connection[Any], statement: Statement) -> int:
    """Blocks that the statement looks at; what it changes is rolled back."""
    text = pyformat(Catalog("postgresql").text(statement.name))
    with connection.transaction(force_rollback=True):
        row = connection.execute(
            f"explain (analyze, buffers, format json) {text}".encode(), _adapted(statement.params)
        ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
