"""SQLSTATEs and SQLite codes in plain words: which of our own errors a driver's error is. By code, never by text."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from typing import Final

from relevo.errors import ConfigError, ReadOnlyError, RelevoError, SchemaError, UnreachableError
from relevo.redacting import redact_text
from relevo.telemetry.often import Often
from relevo.total import attribute, cause_of, name_of, text_of_error

_often: Final = Often(logging.getLogger("relevo.database"), first=1, window_s=60.0)
_TEXT_MAX: Final = 300

_SCHEMA = {
    "42P01": "one of Relevo's tables is missing in {where}. Run: relevo migrate",
    "42883": "one of Relevo's functions is missing in {where}. Run: relevo migrate",
    "42703": "one of Relevo's tables in {where} lacks a column: it is older than this version. Run: relevo migrate",
    "3F000": "the schema does not exist in {where}. Run: relevo migrate",
    "42501": "the role has no permission on one of Relevo's tables in {where}. "
    "`relevo migrate --grant ROLE:NAME --sql` prints the grants that writer, relay, consumer and operator need",
}
_SQLITE_READ_ONLY = frozenset((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH))
_SQLITE_SCHEMA = _SQLITE_READ_ONLY | {sqlite3.SQLITE_ERROR}
_READ_ONLY = "25006"
OUTAGES = ("08", "57P", "53", "58", "25P03", "25P04")
"""What they begin with: connection, operator intervention, resources, system error; and sessions that the server ended
since we stood still."""
CUT_OFF = ("08", "57P")
"""Those among them of a connection that ended: perhaps in the middle of a commit."""
ENDED = ("57P01", "57P02", "57P03")
"""The server shuts down, crashed, or starts. Which of this and a closed socket is seen first is a matter of chance."""
_REFUSED = {
    "28P01": "the password is wrong, or missing",
    "28000": "the role does not exist or may not log in, or pg_hba.conf has no entry that lets it in",
    "3D000": "the database does not exist",
}
"""The server did answer: waiting does not help before the settings are corrected."""

SESSION_REFUSED = ("22", "42")
"""While a connection is made: a parameter of the URL that the server does not know or take, or no right to connect."""


def explain(sqlstate: str | None, detail: str, where: str) -> RelevoError | None:
    """Our error for a PostgreSQL error, or ``None`` when it is not about schema or reachability.

    ``detail`` is the server's own text, appended; ``where`` the redacted URL. No SQLSTATE on a driver's operational
    error means that no server answered: pass ``"08006"`` for it.
    """
    if sqlstate is None:
        return None
    detail = detail.strip()
    if sqlstate in _SCHEMA:
        return SchemaError(f"{_SCHEMA[sqlstate].format(where=where)} ({sqlstate}: {detail})")
    if sqlstate in _REFUSED:
        return ConfigError(f"{where} refuses the connection: {_REFUSED[sqlstate]} ({sqlstate}: {detail})")
    if sqlstate == _READ_ONLY:
        return ReadOnlyError(
            f"{where} is read-only (a standby, or default_transaction_read_only). Point Relevo at the primary "
            f"({sqlstate}: {detail})"
        )
    if sqlstate.startswith(OUTAGES):
        return UnreachableError(f"{where} does not answer: {detail} ({sqlstate})")
    return None


def explain_sqlite(error: sqlite3.Error, where: str) -> RelevoError | None:
    """Our error for an sqlite3 error, or ``None``.

    ``SQLITE_ERROR`` is SQLite's only code for a missing table or column, as for a syntax error; our statements are
    fixed, so from them it means the schema.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_ERROR:
        return SchemaError(
            f"Relevo's tables in {where} are missing or older than this version. Run: relevo migrate ({error})"
        )
    if primary in _SQLITE_READ_ONLY:
        return SchemaError(f"{where} is read-only for us ({error}). Check the rights of the file and its folder")
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return UnreachableError(f"{where} cannot be opened as a database ({error}). Check the path")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
        return UnreachableError(f"{where} is not available ({error})")
    return None


def sqlstates(error: BaseException) -> Iterator[str]:
    """The SQLSTATEs of an error and its causes, whatever the library: psycopg, asyncpg and what SQLAlchemy wraps."""
    for cause in _causes(error):
        for name in ("sqlstate", "pgcode"):
            code = attribute(cause, name)
            if issubclass(type(code), str):
                yield str.__str__(code)
                break


def sqlite_codes(error: BaseException) -> Iterator[int]:
    """SQLite's primary result codes of an error and its causes."""
    return (code & 0xFF for code in extended_sqlite_codes(error))


def extended_sqlite_codes(error: BaseException) -> Iterator[int]:
    """SQLite's extended result codes of an error and its causes."""
    for cause in _causes(error):
        code = attribute(cause, "sqlite_errorcode")
        if type(code) is int:
            yield code


def note_failure(error: BaseException, name: str) -> None:
    """The statement ``name`` of the catalog failed with ``error``: note it there, and log it. So the log has each
    statement that failed and its code, also where the error is handled and a second try succeeds; one line in a
    minute for each statement and code, with how often it came. What comes of missing tables or rights only at the level
    debug: the error that is made of it says what to do."""
    with contextlib.suppress(Exception):  # a class with slots, or with a __setattr__ of its own
        error.relevo_statement = name  # type: ignore[attr-defined]
    state = next(sqlstates(error), None)
    missing = state in _SCHEMA or not _SQLITE_SCHEMA.isdisjoint(sqlite_codes(error))
    code = f" (SQLSTATE {state})" if state else ""
    text = redact_text(text_of_error(error).partition("\n")[0][:_TEXT_MAX])
    _often.log(
        logging.DEBUG if missing else logging.INFO,  # what to do about that is told in Relevo's own error
        (name, state),
        f"failures of statement {name}{code}",
        "statement %s failed%s: %s: %s",
        *(name, code, name_of(type(error)), text),
        extra={"statement": name, "sqlstate": state},
    )


def statement_of(error: BaseException) -> str | None:
    """The statement of the catalog that ``error`` or its cause came from, where it is known."""
    for cause in _causes(error):
        name = attribute(cause, "relevo_statement")
        if type(name) is str:
            return name
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        current = todo.pop()
        if issubclass(type(current), BaseException) and id(current) not in seen:
            seen.add(id(current))
            yield current  # type: ignore[misc]
            todo += [cause_of(current), attribute(current, "orig")]  # type: ignore[arg-type]
