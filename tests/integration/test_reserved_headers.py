"""Headers that CloudEvents and Relevo set: refused where SQL appends, and never sent where a row has them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relevo import wire
from relevo.errors import RefusedError
from relevo.ids import uuid7
from relevo.message import Message, check_headers
from relevo.outgoing import Outgoing
from relevo.times import EPOCH
from tests.support.schema import create_schema

RESERVED = [
    "ce_id", "CE_Id", "ce_", "Ce_TYPE", "ce_kind", "ce_time", "ce_partitionkey", "ce_tombstone", "cE_anything",
    "content-type", "Content-Type", "CONTENT-TYPE", "relevo-consumer", "Relevo-Malformed", "relevo-",
    "cloudEvents:id", "cloudEvents_kind", "CLOUDEVENTS:type",
]  # fmt: skip
FREE = ["x", "cer", "ce", "content-types", "x-ce_id", "relevo", "cloudevents", "ÇE_id", "content_type", ""]


def headers(name: str) -> str:
    return json.dumps({"tenant": "a", name: "b"})


@pytest.fixture
def sqlite(tmp_path: Path) -> sqlite3.Connection:
    create_schema(str(tmp_path / "app.db"))
    return sqlite3.connect(tmp_path / "app.db", isolation_level=None)


def test_postgresql_refuses_them(pg_database: str) -> None:
    create_schema(pg_database)
    add = "select relevo_add('t', 'a.b', '{}', headers => cast(%s as jsonb))"
    with psycopg.connect(pg_database, autocommit=True) as connection:
        for name in RESERVED:
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="header"):
                connection.execute(add, [headers(name)])
        for name in FREE:
            connection.execute(add, [headers(name)])
        for other in (None, "{}"):
            connection.execute(add, [other])
        for wrong in ("[]", "null", '"ce_id"', "1"):
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(add, [wrong])
        assert connection.execute("select count(*) from relevo_outbox").fetchone() == (len(FREE) + 2,)


def test_sqlite_refuses_them(sqlite: sqlite3.Connection) -> None:
    add = "insert into relevo_add (topic, type, payload, headers) values ('t', 'a.b', '{}', ?)"
    for name in [*RESERVED, "\\u0063e_id"]:
        with pytest.raises(sqlite3.IntegrityError, match="reserved"):
            sqlite.execute(add, [headers(name).replace("\\\\", "\\")])
    for name in FREE:
        sqlite.execute(add, [headers(name)])
    for other in (None, "{}"):
        sqlite.execute(add, [other])
    for wrong in ("[]", "no json", "1"):
        with pytest.raises(sqlite3.IntegrityError):
            sqlite.execute(add, [wrong])
    assert sqlite.execute("select count(*) from relevo_outbox").fetchone() == (len(FREE) + 2,)


@pytest.mark.parametrize("name", RESERVED)
def test_python_refuses_them(name: str) -> None:
    with pytest.raises(RefusedError):
        check_headers({name: "x"})


def outgoing(text: str) -> Any:
    columns = ("t", b"k", b"{}", str(uuid7()).encode(), b"2024-01-01T00:00:00+00:00", "event", "real.type", 1)
    return tuple.__new__(Outgoing, (*columns, "application/json", None, None, None, text))


@pytest.mark.parametrize("name", [name for name in RESERVED if not name.lower().startswith("relevo-")])
def test_a_row_that_has_them_is_sent_without_them(name: str) -> None:
    """Also where the real attribute is left out as its default: nothing may stand for it."""
    given = {"tenant": "a", name: "forged", "traceparent": "t"}
    stored = Message(event_id=uuid7(), type="real.type", topic="t", payload=b"", created_at=EPOCH, headers=given)
    for sendable in (stored, outgoing(json.dumps(given))):
        sent = wire.encode(sendable, b"urn:x")
        assert [each for each in sent if each[1] == b"forged"] == []
        assert [each[0] for each in sent][-2:] == ["tenant", "traceparent"]
        assert len({each[0].lower() for each in sent}) == len(sent)
        back = wire.decode("t", b"k", b"", sent, arrived_at=EPOCH, shard="t/0", position=1)
        assert (back.event_id, back.type, back.kind) == (sendable.event_id, "real.type", "event")


# -- the readable views ------------------------------------------------------------------------------------------------

BYTES = [
    None, b"", b"text", "é€😀".encode(), b"\xff\xfe", b"a\x00b", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\x80",
    b"\xf4\x90\x80\x80", b"\x80", uuid7().bytes, "ж".encode() * 20_000, "ж".encode() * 60_000, b"a" * 200_000,
]  # fmt: skip


def text_of(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return "0x" + raw.hex()
    shown = "\x00" not in text and (len(raw) <= 100_000 or text.isascii())
    return text if shown else "0x" + raw.hex()


def test_sqlites_views_show_any_bytes_as_text(sqlite: sqlite3.Connection) -> None:
    """Every client can read them: text where the bytes are text, else hexadecimal."""
    for raw in BYTES:
        sqlite.execute(
            "insert into relevo_outbox (event_id, topic, type, key, payload) values (?, 't', 'a.b', ?, ?)",
            [str(uuid7()), raw, raw],
        )
    sqlite.execute(
        "insert into relevo_archive select seq, event_id, bucket, kind, topic, key, type, schema_version,"
        " aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at, 1, 'published',"
        " 1 from relevo_outbox"
    )
    sqlite.execute(
        "insert into relevo_held_key (side, topic, key, bucket, state, reason)"
        " select 'relay', 't', coalesce(key, x'00'), 1, 'parked', seq from relevo_outbox"
    )
    sqlite.execute(
        "insert into relevo_held_message (side, topic, held_key, event_id, position, bucket, kind, type,"
        " schema_version, payload, content_type, created_at)"
        " select 'relay', 't', coalesce(key, x'00'), event_id, seq, 1, 'event', type, 1, payload, 'x', created_at"
        " from relevo_outbox"
    )
    right = [text_of(raw) for raw in BYTES]
    for view in ("relevo_outbox_readable", "relevo_archive_readable"):
        found = sqlite.execute(f"select key, payload, aggregate_id from {view} order by seq").fetchall()
        assert found == [(text, text, text) for text in right]
    held = sqlite.execute("select key, payload from relevo_held_readable order by position").fetchall()
    assert held == [("0x00" if text is None else text, text) for text in right]


def test_postgresqls_views_show_any_bytes_as_text(pg_database: str) -> None:
    create_schema(pg_database)
    with psycopg.connect(pg_database, autocommit=True) as connection:
        for raw in BYTES:
            connection.execute(
                "insert into relevo_outbox (event_id, bucket, topic, type, key, payload)"
                " values (gen_random_uuid(), 1, 't', 'a.b', %s, %s)",
                [raw, raw],
            )
        found = connection.execute("select key, payload from relevo_outbox_readable order by seq").fetchall()
        assert len(found) == len(BYTES)
        for (key, payload), raw in zip(found, BYTES, strict=True):
            assert (payload is None) is (raw is None)
            assert key in (None, payload)
