"""Topics, their shards and what is appended to them. Statements on one connection; the caller holds the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from relevo.brokers.embedded.clock import now_ms
from relevo.message import check_name

Record = tuple[int, int, bytes | None, bytes | None, bytes, int]
"""shard_id, position, key, payload, headers, created_ms: a row of ``records``."""

Row = tuple[int, bytes | None, bytes | None, bytes, int]
"""position, key, payload, headers, created_ms: what a reader sees."""


def shards_of(connection: sqlite3.Connection, topic: str) -> Sequence[int]:
    """The ids of the topic's shards by partition number; empty for an unknown topic."""
    rows = connection.execute("select shard_id from shards where topic = ? order by part", (topic,)).fetchall()
    return [shard_id for (shard_id,) in rows]


def create(connection: sqlite3.Connection, topic: str, partitions: int) -> Sequence[int]:
    """The topic's shards, made now if it did not exist. Needs a write transaction."""
    found = shards_of(connection, topic)
    if found:
        return found
    check_name("topic", topic)
    connection.execute("insert into topics (topic, created_ms) values (?, ?)", (topic, now_ms(connection)))
    connection.executemany(
        "insert into shards (topic, part) values (?, ?)", [(topic, part) for part in range(partitions)]
    )
    return shards_of(connection, topic)


def next_position(connection: sqlite3.Connection, shard_id: int) -> int:
    row = connection.execute("select next_position from shards where shard_id = ?", (shard_id,)).fetchone()
    return int(row[0])


def append(connection: sqlite3.Connection, records: Iterable[Record], ends: Iterable[tuple[int, int]]) -> None:
    """Store ``records``; ``ends`` are (next position, shard_id) of the shards that grew."""
    connection.executemany(
        "insert into records (shard_id, position, key, payload, headers, created_ms) values (?, ?, ?, ?, ?, ?)", records
    )
    connection.executemany("update shards set next_position = ? where shard_id = ?", ends)


def read(
    connection: sqlite3.Connection, shard_id: int, position: int, limit: int, bytes_max: int
) -> tuple[list[Row], int]:
    """Up to ``limit`` rows from ``position`` on, ending after ``bytes_max`` of payload; and how many bytes it were."""
    rows: list[Row] = []
    size = 0
    cursor = connection.execute(
        "select position, key, payload, headers, created_ms from records"
        " where shard_id = ? and position >= ? order by position limit ?",
        (shard_id, position, limit),
    )
    for row in cursor:
        rows.append(row)
        size += len(row[2] or b"")
        if size >= bytes_max:
            break
    cursor.close()
    return rows, size


def ahead(connection: sqlite3.Connection, shard_id: int, position: int) -> int:
    """How many positions from ``position`` on were given out and not removed."""
    first, end = connection.execute(
        "select first_position, next_position from shards where shard_id = ?", (shard_id,)
    ).fetchone()
    return int(end) - max(int(first), position)
