"""Whether a connection is used again after what went wrong on it.

What a handler leaves on a connection (a temporary table, a lock of the session's, a function, a result half read) can
make the next handler fail, or a statement of Relevo's, and then each one after it. So Relevo tries what failed again on
another connection. Conflicts are the exception: another transaction causes them, and they come often.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from relevo.clients.sqlstate import extended_sqlite_codes, sqlite_codes, sqlstates
from relevo.consumer.verdicts import Reject, Retry
from relevo.errors import MisuseError, RelevoError

# With lock time-outs and cancelled statements. Those ``runtime.classify`` counts as failures of the handler, but
# a fresh connection helps against none of them.
_CONFLICTS: Final = ("40001", "40P01", "55P03", "57014")
_SQLITE_CONFLICTS: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def distrusted(error: BaseException) -> bool:
    """Whether the connection of a transaction that ended with ``error`` is to be thrown away."""
    kind = type(error)
    if issubclass(kind, MisuseError):
        return True
    if issubclass(kind, (Retry, Reject, RelevoError)):  # said on purpose, by the handler or by Relevo
        return False
    if sqlite3.SQLITE_BUSY_SNAPSHOT in extended_sqlite_codes(error):
        return True  # no other writer, but a result that was never read to its end on this very connection
    conflict = any(code in _CONFLICTS for code in sqlstates(error))
    return not conflict and not any(code in _SQLITE_CONFLICTS for code in sqlite_codes(error))
