"""Errors, classified by what the caller may do next.

::

    RelevoError
    ├── RefusedError            the data given cannot become a message (exit 1); says where in the data
    │   └── TooLargeError
    ├── MisuseError             the API was used in a way that would lose an event or a promise (exit 1)
    │   ├── NotInTransactionError
    │   ├── ForgottenAwaitError
    │   └── UsageError          options or arguments of a command that are missing or do not fit (exit 2)
    ├── ConfigError             settings, URLs, extras, handlers (exit 78)
    │   └── MissingExtraError
    ├── SchemaError             tables missing, older, newer than allowed, or forbidden to us (exit 78)
    ├── UnreachableError        a database or broker does not answer (exit 69)
    │   └── ReadOnlyError       the database takes no writes: a standby, or set so (exit 78)
    ├── LostOwnershipError      a lease or an epoch is gone; what was done is with the new owner (exit 75)
    ├── TaskEndedError          a part of the process ended and is not started again (exit 70)
    ├── CancelledJobError       somebody ended the job before it was through (exit 1)
    ├── StillRunningError       what must end first has not ended (exit 75)
    └── CheckFailedError        a check found a problem (exit 3)

A message says what happened and what to do. None carries a password: URLs go through ``relevo.settings.redact``.
"""

from __future__ import annotations


class RelevoError(Exception):
    """Something failed in Relevo."""

    exit_code = 1
    sqlstate: str | None = None
    """What a PostgreSQL server refused a connection with, where it did; other errors of a server are the cause."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


class RefusedError(RelevoError):
    """The data cannot become a message."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path and not message.startswith(path) else message)
        self.path = path


class TooLargeError(RefusedError):
    """The message is larger than the limit; raise the limit where the broker allows it, or carry less."""


class MisuseError(RelevoError):
    """The API was used in a way that would break a promise."""


class NotInTransactionError(MisuseError):
    """The driver would commit the outbox row by itself, apart from your data. Open a transaction first, or pass
    allow_autocommit=True to Outbox if that is what you mean."""


class ForgottenAwaitError(MisuseError):
    """An outbox.add() on an async handle was not awaited: the event would be lost. Write `await outbox.add(...)`."""


class UsageError(MisuseError):
    """Options or arguments of a command are missing, or do not fit each other."""

    exit_code = 2


class ConfigError(RelevoError):
    """The configuration is wrong."""

    exit_code = 78


class MissingExtraError(ConfigError):
    """An optional dependency is missing."""

    def __init__(self, module: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {module!r}. Install it with: pip install 'relevo[{extra}]'")
        self.extra = extra


class SchemaError(RelevoError):
    """Relevo's tables are missing or do not fit this version. Run: relevo migrate"""

    exit_code = 78


class UnreachableError(RelevoError):
    """A database or broker does not answer."""

    exit_code = 69


class ReadOnlyError(UnreachableError):
    """The database is read-only: a standby, or default_transaction_read_only. Point Relevo at the primary"""

    exit_code = 78


class LostOwnershipError(RelevoError):
    """A lane or partition belongs to somebody else by now; its new owner goes on from what was settled."""

    exit_code = 75


class TaskEndedError(RelevoError):
    """A part of this process ended although it was not stopped, and is not started again: the process ends."""

    exit_code = 70


class CancelledJobError(RelevoError):
    """Somebody cancelled the job before it was through. What it did so far stays done."""


class StillRunningError(RelevoError):
    """Something that began before has not ended yet, and it must not be passed by. Try again when it has."""

    exit_code = 75


class CheckFailedError(RelevoError):
    """A check found a problem."""

    exit_code = 3


class ForgottenAwaitWarning(RuntimeWarning):
    """An outbox.add() on an async handle was never awaited, so its event was NOT written."""
