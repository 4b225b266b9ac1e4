"""Records and rows that are written by hand into the files and tables of the brokers that are databases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from relevo.ids import bucket_of, uuid7
from tests.support.strangers.corpus import Record

NOW_MS = 1_700_000_000_000


def into_embedded(path: Path, topic: str, records: Sequence[Record]) -> None:
    """All into the topic's first shard, behind what is there."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("begin immediate")
    ((shard_id, position),) = connection.execute(
        "select shard_id, next_position from shards where topic = ? and part = 0", (topic,)
    ).fetchall()
    for number, each in enumerate(records):
        row = (
            shard_id,
            position + number,
            each.key,
            each.value,
            _packed(each),
            NOW_MS if each.at_ms is None else each.at_ms,
        )
        connection.execute("insert into records values (?, ?, ?, ?, ?, ?)", row)
    connection.execute("update shards set next_position = ? where shard_id = ?", (position + len(records), shard_id))
    connection.execute("commit")
    connection.close()


def _packed(each: Record) -> bytes:
    if each.raw is not None:
        assert isinstance(each.raw, bytes)
        return each.raw
    parts = [b"\xdc" + len(each.headers).to_bytes(2, "big")]
    for name, value in each.headers:
        # By hand: a packer would refuse text that is not UTF-8.
        parts.append(b"\x92\xdb" + len(name).to_bytes(4, "big") + name + msgspec.msgpack.encode(value or b""))
    return b"".join(parts)


COLUMNS = (
    "event_id", "bucket", "kind", "topic", "key", "type", "schema_version", "aggregate_type", "aggregate_id",
    "aggregate_version", "payload", "content_type", "headers", "created_at",
)  # fmt: skip


def row_of(topic: str, each: Record) -> dict[str, Any] | None:
    """The columns of a row; ``None`` where the table's types leave no way to say it."""
    event_id = uuid7()
    columns: dict[str, Any] = {
        "event_id": event_id, "bucket": bucket_of(each.key, event_id), "kind": "event", "topic": topic, "key": each.key,
        "schema_version": 1, "aggregate_type": None, "aggregate_id": None, "aggregate_version": None,
        "payload": each.value, "content_type": "application/json", "created_at": "2024-01-01T00:00:00Z", "type": "",
    }  # fmt: skip
    headers: dict[str, str] = {}
    try:
        for raw_name, raw in each.headers:
            name, text = raw_name.decode(), (raw or b"").decode()
            match name:
                case "ce_type":
                    columns["type"] = text
                case "content-type":
                    columns["content_type"] = text
                case "ce_aggregatetype" | "ce_aggregateid":
                    columns[name.replace("ce_aggregate", "aggregate_")] = text
                case _:
                    headers[name] = text
            if "\0" in name + text:
                return None
    except UnicodeDecodeError:
        return None
    more: dict[str, Any] = dict(each.raw) if isinstance(each.raw, dict) else {}
    if more.get("headers"):
        more["headers"] = json.dumps(headers)[:-1] + ", " + more["headers"].lstrip("{")
    return {**columns, "headers": json.dumps(headers), **more}


def into_outbox(url: str, topic: str, records: Sequence[Record]) -> list[Record]:
    """Returns those that could be written."""
    names, places = ", ".join(COLUMNS), ", ".join(f"%({name})s" for name in COLUMNS)
    written = []
    with psycopg.connect(url) as connection:
        for each in records:
            row = row_of(topic, each)
            if row is not None:
                connection.execute(f"insert into relevo_outbox ({names}) values ({places})", row)
                written.append(each)
    return written
