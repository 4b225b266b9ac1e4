"""What a handler's or database's error means: by SQLSTATE, SQLite code and type, never by text.

The rule that matters most: only an error of *this* transaction's connection is an outage. A handler that cannot reach
some other service has failed; it is counted and backed off like any other failure.
"""

from __future__ import annotations

import sqlite3
from typing import Literal

from relevo.clients.sqlstate import OUTAGES, sqlite_codes, sqlstates
from relevo.errors import UnreachableError
from relevo.outcome import Ambiguous, Conflict, Failed, HandleOutcome, Unavailable
from relevo.runtime.texts import describe

Stage = Literal["begin", "ours", "handler", "commit"]
"""Where it happened: taking the connection, Relevo's own statements, the handler with its flush, or COMMIT."""

_CONFLICTS = ("40001", "40P01")
_UNKNOWN_END = ("08007", "40003")  # the server itself does not know how the transaction or statement ended
_NOT_A_PRIMARY = "25006"
_SCARCE = ("58000", "58030")  # and all of class 53
_SQLITE_SCARCE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_SQLITE_CONFLICTS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SQLITE_OUTAGES = (
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_PERM),  # a broken file is no message's fault
)


def classify(error: BaseException, stage: Stage, *, broken: bool, where: str = "") -> HandleOutcome:
    """The outcome of a run that ended with ``error``. ``broken``: whether this transaction's connection is lost.
    ``where``: the handler, for an error that names no place."""
    error_type, text = describe(error, where)
    reason = f"{error_type}: {text}"
    codes = list(sqlstates(error))
    primary = list(sqlite_codes(error))
    if stage == "commit" and (broken or any(code in _UNKNOWN_END for code in codes)):
        return Ambiguous(reason)
    if broken or stage == "begin":
        return Unavailable(reason)
    if any(code in _CONFLICTS for code in codes) or any(code in _SQLITE_CONFLICTS for code in primary):
        return Conflict(reason)
    if any(code.startswith(OUTAGES) or code == _NOT_A_PRIMARY for code in codes):
        return Unavailable(reason)
    if any(code in _SQLITE_OUTAGES for code in primary):
        return Unavailable(reason)
    if stage == "ours":
        # Missing tables or rights are the installation's fault and never the message's: wait for them, park nothing.
        return Unavailable(reason)
    return Failed(error_type, text)


def is_scarce(error: BaseException) -> bool:
    """Whether the server or the file lacks something it may have again soon, for this statement as for others."""
    return any(code in _SCARCE or code.startswith("53") for code in sqlstates(error)) or any(
        code in _SQLITE_SCARCE for code in sqlite_codes(error)
    )


def is_transient(error: BaseException) -> bool:
    """Whether bookkeeping that failed with ``error`` may simply be tried again."""
    if isinstance(error, UnreachableError):
        return True
    return any(code in _CONFLICTS or code.startswith(OUTAGES) for code in sqlstates(error)) or any(
        code in _SQLITE_CONFLICTS for code in sqlite_codes(error)
    )
