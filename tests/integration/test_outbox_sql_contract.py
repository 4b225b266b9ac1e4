"""The SQL contract: what triggers, other languages and COPY write equals what `Outbox.add` writes."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from pathlib import Path
from uuid import RFC_4122, UUID

import psycopg
import pytest

from relevo import Outbox
from relevo.catalog import Catalog, pyformat
from relevo.ids import bucket_of
from tests.support.callers import rows
from tests.support.events import OrderPlaced
from tests.support.schema import create_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "buckets.md"
KEY_ROW = re.compile(r"^\| (?:`(?P<key>[^`]+)`|\(empty\)) \| `?(?P<hex>[0-9a-f]*)`? ?\| (?P<bucket>\d+) \|$", re.M)
ID_ROW = re.compile(r"^\| `(?P<id>[0-9a-f-]{36})` \| (?P<bucket>\d+) \|$", re.M)
NO_ID = UUID(int=0)


def key_vectors() -> list[tuple[str, int]]:
    found = [(match["key"] or "", match["hex"], int(match["bucket"])) for match in KEY_ROW.finditer(PAGE.read_text())]
    assert len(found) >= 9
    assert all(bytes.fromhex(given) == key.encode() for key, given, _ in found)
    return [(key, bucket) for key, _, bucket in found]


def id_vectors() -> list[tuple[UUID, int]]:
    found = [(UUID(match["id"]), int(match["bucket"])) for match in ID_ROW.finditer(PAGE.read_text())]
    assert len(found) >= 3
    return found


@pytest.fixture
def pg(pg_database: str) -> str:
    create_schema(pg_database)
    return pg_database


def test_the_page_agrees_with_python() -> None:
    """docs/reference/buckets.md against `relevo.ids.bucket_of`."""
    assert [(key, bucket_of(key.encode(), NO_ID)) for key, _ in key_vectors()] == key_vectors()
    assert [(event_id, bucket_of(None, event_id)) for event_id, _ in id_vectors()] == id_vectors()


def test_the_page_agrees_with_postgresql(pg: str) -> None:
    """docs/reference/buckets.md against `relevo_bucket_of`, and 500 random keys against Python."""
    with psycopg.connect(pg) as connection:
        for key, bucket in key_vectors():
            query = "select relevo_bucket_of(convert_to(%s, 'UTF8'), null)"
            assert connection.execute(query, [key]).fetchone() == (bucket,)
        for event_id, bucket in id_vectors():
            assert connection.execute("select relevo_bucket_of(null, %s)", [event_id]).fetchone() == (bucket,)
        query = (
            "select k, relevo_bucket_of(k, null) from (select sha256(n::text::bytea) k from generate_series(1, 500) n)"
        )
        for key_bytes, bucket in connection.execute(query + " as keys"):
            assert bucket == bucket_of(key_bytes, NO_ID)


def test_relevo_add_equals_outbox_add(pg: str) -> None:
    """For every key of the page, `relevo_add()` and `Outbox.add` give the same row but for id, transaction and time."""
    outbox = Outbox()
    with psycopg.connect(pg) as connection:
        for key, _ in key_vectors():
            outbox.add(connection, OrderPlaced(1), key=key, headers={"tenant": "a"}, aggregate_version=3)
            connection.execute(
                "select relevo_add('shop.order', 'shop.order.placed', %s, %s, %s, aggregate_version => 3)",
                ['{"order_id": 1, "note": ""}', key, '{"tenant": "a"}'],
            )
    written = rows(pg)
    assert len(written) == 2 * len(key_vectors())
    for ours, theirs in zip(written[::2], written[1::2], strict=True):
        for row in (ours, theirs):
            row["payload"] = json.loads(row["payload"])
            assert bucket_of(row["key"], NO_ID) == row["bucket"]
        different = {"seq", "event_id", "created_at"}
        assert {name: ours[name] for name in ours if name not in different} == {
            name: theirs[name] for name in theirs if name not in different
        }


def test_relevo_add_without_a_key_hashes_its_id(pg: str) -> None:
    """No key: the bucket is of the 16 bytes of the event_id, which is a UUIDv7 of now."""
    with psycopg.connect(pg) as connection:
        for _ in range(50):
            connection.execute("select relevo_add('shop.order', 'shop.order.placed', '{}')")
    for row in rows(pg):
        assert row["key"] is None
        assert row["bucket"] == bucket_of(None, row["event_id"])
        assert_uuid7_of_now(row["event_id"])


def test_relevo_add_refuses(pg: str) -> None:
    """Bad names by SQLSTATE 22023, too large by 54000; nothing is written."""
    with psycopg.connect(pg, autocommit=True) as connection:
        for topic in (None, "", "a b", "x" * 201):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                connection.execute("select relevo_add(%s, 'shop.order.placed', '{}')", [topic])
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            connection.execute("select relevo_add('t', 'a.b', to_jsonb(repeat('x', 1000001)))")
    assert rows(pg) == []


def test_a_trigger_may_call_it(pg: str) -> None:
    """A trigger on a business table appends in the same transaction; a rollback takes both."""
    with psycopg.connect(pg) as connection:
        connection.execute("create table orders (id int primary key)")
        connection.execute(
            "create function announce() returns trigger language plpgsql as $$ begin"
            " perform relevo_add('shop.order', 'shop.order.placed', to_jsonb(new), new.id::text);"
            " return new; end $$"
        )
        connection.execute("create trigger announce after insert on orders for each row execute function announce()")
        connection.commit()
        connection.execute("insert into orders values (1)")
        connection.rollback()
        connection.execute("insert into orders values (2)")
    assert [(row["key"], json.loads(row["payload"])) for row in rows(pg)] == [(b"2", {"id": 2})]


def test_sqlite_view_equals_outbox_add(tmp_path: Path) -> None:
    """SQLite's view gives the same row, its bucket left to the relay (null), its id a UUIDv7 of now."""
    path = str(tmp_path / "app.db")
    create_schema(path)
    connection = sqlite3.connect(path)
    outbox = Outbox()
    for key, _ in key_vectors():
        outbox.add(connection, OrderPlaced(1), key=key, headers={"tenant": "a"})
        connection.execute(
            "insert into relevo_add (topic, type, payload, key, headers) values (?, ?, ?, ?, ?)",
            ["shop.order", "shop.order.placed", '{"order_id":1,"note":""}', key, '{"tenant":"a"}'],
        )
    connection.commit()
    connection.close()
    written = rows(path)
    for ours, theirs in zip(written[::2], written[1::2], strict=True):
        assert theirs["bucket"] is None
        assert ours["bucket"] == bucket_of(theirs["key"], NO_ID)
        assert_uuid7_of_now(UUID(theirs["event_id"]))
        assert theirs["event_id"] == str(UUID(theirs["event_id"]))  # lower case, with dashes: as ours are written
        assert abs(ours["created_at"] - theirs["created_at"]) < 60_000
        different = {"seq", "event_id", "created_at", "bucket"}
        assert {name: ours[name] for name in ours if name not in different} == {
            name: theirs[name] for name in theirs if name not in different
        }


@pytest.mark.parametrize(
    ("topic", "payload"), [(None, "{}"), ("", "{}"), ("shop.order", "{"), ("shop.order", f'"{"x" * 1_000_001}"')]
)
def test_sqlite_view_refuses(topic: str | None, payload: str, tmp_path: Path) -> None:
    """No topic, no JSON, too large: the statement fails."""
    path = str(tmp_path / "app.db")
    create_schema(path)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("insert into relevo_add (topic, type, payload) values (?, 'a.b', ?)", [topic, payload])
    connection.close()


def test_find_reads_back_to_the_time_in_the_id(pg: str) -> None:
    """`find` walks the primary key from its end: with 20,000 older rows it touches only those since the id's time."""
    with psycopg.connect(pg) as connection:
        connection.execute(
            "insert into relevo_outbox (event_id, bucket, topic, type, created_at)"
            " select gen_random_uuid(), 1, 't', 'a.b', now() - interval '1 day' from generate_series(1, 20000)"
        )
        outbox = Outbox()
        event_id = outbox.add(connection, OrderPlaced(1))
        old = connection.execute("select event_id from relevo_outbox limit 1").fetchone()
        assert old is not None
        connection.execute("analyze relevo_outbox")
        assert outbox.find(connection, event_id)
        assert outbox.find(connection, old[0])  # not a UUIDv7: the whole table is read
        text = pyformat(Catalog("postgresql").text("append.find"))
        moment = connection.execute("select clock_timestamp()").fetchone()
        assert moment is not None
        plan = connection.execute(
            f"explain (analyze, timing off, format json) {text}".encode(), {"event_id": event_id, "since": moment[0]}
        ).fetchone()
    assert plan is not None
    assert "Seq Scan" not in json.dumps(plan[0])
    assert max(_rows_touched(plan[0][0]["Plan"])) < 20


def _rows_touched(node: dict[str, object]) -> list[float]:
    touched = [float(str(node["Actual Rows"])) + float(str(node.get("Rows Removed by Filter", 0)))]
    children = node.get("Plans", [])
    assert isinstance(children, list)
    return touched + [count for child in children for count in _rows_touched(child)]


def assert_uuid7_of_now(event_id: UUID) -> None:
    assert event_id.version == 7
    assert event_id.variant == RFC_4122
    assert abs((event_id.int >> 80) / 1000 - time.time()) < 60
