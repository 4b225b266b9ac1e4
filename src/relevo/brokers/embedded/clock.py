"""One clock for all who share the file: SQLite's, as for an SQLite outbox, and not that of a process's Python."""

from __future__ import annotations

import sqlite3


def now_ms(connection: sqlite3.Connection) -> int:
    """Milliseconds since 1970 UTC."""
    row = connection.execute("select cast((julianday('now') - 2440587.5) * 86400000 as integer)").fetchone()
    return int(row[0])
