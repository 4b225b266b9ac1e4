"""How a loop waits out what goes wrong: it says so, backs off, is not ready meanwhile, and goes on by itself.

Once a process has started, no error of a database or broker ends it, whichever it is: a list of those that pass by
themselves is never complete. An error of Relevo's own is logged with its traceback, and the loop tries again as well.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from relevo.clients.sqlstate import sqlite_codes, sqlstates, statement_of
from relevo.errors import ConfigError, MisuseError, ReadOnlyError, RefusedError, RelevoError, SchemaError
from relevo.policy import PROBE_BACKOFF, Backoff
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.texts import clean
from relevo.runtime.trouble import Trouble
from relevo.total import text_of_error

AGAIN_S: Final = 30.0
"""The same kind of error is logged again after so long, with how often it came; then after twice as long, and so on."""
AGAIN_MAX_S: Final = 600.0
READ_ONLY_S: Final = 5.0
"""So long a database may take no writes at the start of a process."""
_THERE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
_OF_DATA = ("22", "23", "P0001")
_OF_DATA_SQLITE = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG)
_STAYS = ("22", "23", "42")
"""SQLSTATE classes: of data, of checks, of rights and names."""
_MISTAKES = (ConfigError, SchemaError, ReadOnlyError, MisuseError, RefusedError)


class Patience:
    """Of one loop. ``what`` it does, for the log. ``trouble``: why it does not work, while it does not."""

    def __init__(
        self,
        what: str,
        log: logging.Logger,
        *,
        clock: Clock = SYSTEM,
        backoff: Backoff = PROBE_BACKOFF,
        trouble: Trouble | None = None,
    ) -> None:
        self.trouble = trouble if trouble is not None else Trouble(clock)
        self._what = what
        self._log = log
        self._clock = clock
        self._backoff = backoff
        self._failures = 0
        self._loud = False
        self._read_only_at: float | None = None
        self._said: dict[str, tuple[float, float, int]] = {}
        """By kind of error: when it may be logged again, after how long, and how often it came since."""

    def ends(self, error: BaseException) -> bool:
        """Whether ``error``, at the start, ends it: a mistake. A database that takes no writes may be one that is being
        promoted: it is asked again for a while."""
        if not isinstance(error, ReadOnlyError):
            return is_mistake(error)
        now = self._clock.seconds()
        if self._read_only_at is None:
            self._read_only_at = now
        return now - self._read_only_at >= READ_ONLY_S

    def failed(self, error: BaseException) -> float:
        """It failed with ``error``; the seconds to wait before the next try."""
        self._failures += 1
        self.trouble.begin(reason_of(error))
        self.say(error)
        return self._backoff.delay_s(self._failures)

    def say(self, error: BaseException) -> None:
        """Log ``error``, unless one of its kind was logged lately."""
        kind = kind_of(error)
        now = self._clock.seconds()
        again_at, pause_s, came = self._said.get(kind, (now, AGAIN_S, 0))
        if now < again_at:
            self._said[kind] = again_at, pause_s, came + 1
            return
        if now - again_at > pause_s:
            pause_s = AGAIN_S  # it was quiet meanwhile
        self._said[kind] = now + pause_s, min(2 * pause_s, AGAIN_MAX_S), 0
        self._loud = True
        more = f", {came} times more since it was last logged" if came else ""
        if is_ours(error):
            self._log.error("%s failed, and is tried again: %s%s", self._what, reason_of(error), more, exc_info=error)
        else:
            self._log.warning("%s waits, and is tried again until it works: %s%s", self._what, reason_of(error), more)

    def worked(self) -> bool:
        """It worked: the next failure waits shortly again. Whether it did not until now."""
        if not self._failures:
            return False
        if self._loud:
            self._log.info("%s works again after %d failed tries", self._what, self._failures)
        self._failures, self._loud = 0, False
        self.trouble.end()
        return True


def reason_of(error: BaseException) -> str:
    """``error`` in one line, with its SQLSTATE and the statement it came from, where they are known. Never raises."""
    text = text_of_error(error).partition("\n")[0]
    if not isinstance(error, RelevoError):
        text = f"{type(error).__name__}: {text}"
    state, statement = next(sqlstates(error), None), statement_of(error)
    notes = [f"SQLSTATE {state}" if state and state not in text else "", f"statement {statement}" if statement else ""]
    more = ", ".join(filter(None, notes))
    return clean(f"{text} ({more})" if more else text, 1000)


def kind_of(error: BaseException) -> str:
    """What two errors of one kind have in common."""
    return f"{type(error).__name__} {next(sqlstates(error), '')} {statement_of(error) or ''}"


def is_mistake(error: BaseException) -> bool:
    """Whether ``error``, at the start of a process, is for the operator to put right: waiting does not help."""
    return isinstance(error, _MISTAKES) or is_ours(error)


def stays(error: BaseException) -> bool:
    """Whether it comes from a value, a right or a bug: tried again less often than an outage."""
    if isinstance(error, ConfigError | SchemaError) or is_ours(error):
        return True
    return any(state.startswith(_STAYS) for state in sqlstates(error))


def of_data(error: BaseException) -> bool:
    """Whether the database refuses a value: of one row, and for ever. A trigger's own exception counts as such."""
    if any(state.startswith(_OF_DATA) for state in sqlstates(error)):
        return True
    return any(code in _OF_DATA_SQLITE for code in sqlite_codes(error))


def has_answered(error: BaseException) -> bool:
    """Whether a server was reached, or a file is there and busy: not merely that no connection could be had."""
    if statement_of(error) is not None or any(not state.startswith("08") for state in sqlstates(error)):
        return True
    return any(code in _THERE for code in sqlite_codes(error))


def is_ours(error: BaseException) -> bool:
    """Whether it is neither a database's nor a broker's: a bug, or the machine (memory, recursion)."""
    if isinstance(error, RelevoError | OSError):  # TimeoutError is one
        return False
    return next(sqlstates(error), None) is None and next(sqlite_codes(error), None) is None
