"""Removing what is old and settled, a little at a time."""

from __future__ import annotations

import sqlite3
from typing import Final

from relevo.brokers.embedded.clock import now_ms

PURGE_EVERY_S: Final = 60.0
BATCH: Final = 500
"""Records removed in one transaction, so that no publisher waits for long."""

_FLOORS = """
select s.shard_id, s.first_position, min(s.next_position, coalesce(min(l.committed), s.next_position)) as floor
from shards s left join leases l on l.shard_id = s.shard_id
group by s.shard_id
having floor > s.first_position
"""


def purge(connection: sqlite3.Connection, retention_s: float, now_s: float | None = None) -> bool:
    """Remove up to ``BATCH`` records per shard that are older than ``retention_s`` *and* settled by every group that
    ever subscribed; whether there may be more. A group that nobody uses any more keeps its records."""
    before_ms = int((now_ms(connection) if now_s is None else now_s * 1000) - retention_s * 1000)
    more = False
    for shard_id, first, floor in connection.execute(_FLOORS).fetchall():
        rows = connection.execute(
            "select position, created_ms from records where shard_id = ? and position >= ? and position < ?"
            " order by position limit ?",
            (shard_id, first, floor, BATCH),
        ).fetchall()
        young = next((index for index, (_, created_ms) in enumerate(rows) if created_ms >= before_ms), len(rows))
        if young == 0:
            continue
        up_to = rows[young - 1][0] + 1
        connection.execute("begin immediate")
        try:
            connection.execute("delete from records where shard_id = ? and position < ?", (shard_id, up_to))
            connection.execute(
                "update shards set first_position = max(first_position, ?) where shard_id = ?", (up_to, shard_id)
            )
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        more = more or young == BATCH
    return more
