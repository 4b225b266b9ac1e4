"""How a loop waits out what goes wrong: it says so, backs off, is not ready meanwhile, and goes on by itself.

Once a process has started, no error of a database or broker ends it, whichever it is: a list of those that pass by
themselves is never complete. An error of Relevo's own is logged with its traceback, and the loop tries again as well.
"""

from __future__ import annotations

import logging
from typing import Final

from relevo.clients.sqlstate import sqlite_codes, sqlstates, statement_of
from relevo.errors import ConfigError, MisuseError, RefusedError, RelevoError, SchemaError
from relevo.policy import PROBE_BACKOFF, Backoff
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.texts import clean
from relevo.runtime.trouble import Trouble

AGAIN_S: Final = 30.0
"""The same kind of error is logged so often at most, with how often it came."""
_MISTAKES = (ConfigError, SchemaError, MisuseError, RefusedError)


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
        self._said: dict[str, tuple[float, int]] = {}
        """By kind of error: when it was logged last, and how often it came since."""

    def failed(self, error: BaseException) -> float:
        """It failed with ``error``; the seconds to wait before the next try."""
        self._failures += 1
        self.trouble.begin(reason_of(error))
        delay_s = self._backoff.delay_s(self._failures)
        kind = kind_of(error)
        at, came = self._said.get(kind, (-AGAIN_S, 0))
        now = self._clock.seconds()
        if now - at < AGAIN_S:
            self._said[kind] = at, came + 1
            return delay_s
        self._said[kind] = now, 0
        self._loud = True
        more = f", {came} times more since it was last logged" if came else ""
        if is_ours(error):
            self._log.error("%s failed, and is tried again: %s%s", self._what, reason_of(error), more, exc_info=error)
        else:
            self._log.warning("%s waits, and is tried again until it works: %s%s", self._what, reason_of(error), more)
        return delay_s

    def worked(self) -> None:
        """It worked: the next failure waits shortly again."""
        if not self._failures:
            return
        if self._loud:
            self._log.info("%s works again after %d failed tries", self._what, self._failures)
        self._failures, self._loud = 0, False
        self.trouble.end()


def reason_of(error: BaseException) -> str:
    """``error`` in one line, with its SQLSTATE and the statement it came from, where they are known. Never raises."""
    try:
        text = str(error).partition("\n")[0]
    except Exception as failed:  # noqa: BLE001 - a broken __str__ must not hide the error it belongs to
        text = f"(its text could not be made: {type(failed).__name__})"
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


def is_ours(error: BaseException) -> bool:
    """Whether it is neither a database's nor a broker's: a bug, or the machine (memory, recursion)."""
    if isinstance(error, RelevoError | OSError):  # TimeoutError is one
        return False
    return next(sqlstates(error), None) is None and next(sqlite_codes(error), None) is None
