"""A message that another process runs just now, as its inbox row or its key's row shows: it waits, and nothing else."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from relevo.clients.sqlstate import sqlite_codes, sqlstates
from relevo.consumer.work import Done, Progress, Steps
from relevo.errors import RelevoError
from relevo.message import Message
from relevo.storage import inboxing
from relevo.storage.inboxing import Bounds

ELSEWHERE_S = 1.0
"""The longest wait before it is looked again whether a message still runs elsewhere."""
_WAITED_TOO_LONG = "55P03"
_SQLITE_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another transaction, of another process as a rule, runs the message or holds its key's row just now. Nothing
    happened here, no attempt is spent, and the database is not at fault: the message is tried again soon."""

    reason: str


class UnclaimedError(RelevoError):
    """No other transaction has written the inbox row of a message. Raised to take back what was written to find out."""


def look(consumer: str, message: Message) -> Steps[Done]:
    """Whether another transaction runs a message just now: the driver's error for SQLSTATE 55P03. Raises
    ``UnclaimedError`` where none does. Leaves nothing behind."""
    if (yield from inboxing.insert_soon(consumer, message.event_id, Bounds(inboxing.LOOK_MS))):
        raise UnclaimedError
    return "duplicate"


def elsewhere(error: BaseException, progress: Progress) -> Elsewhere | None:
    """Whether ``error`` says that another transaction was in the way of Relevo's own statements, before any handler."""
    if progress.broken or progress.job is not None:
        return None
    if progress.stage == "ours" and _WAITED_TOO_LONG in sqlstates(error):
        return Elsewhere("another transaction runs this message, or holds its key's row, just now")
    if progress.stage == "begin" and any(code in _SQLITE_BUSY for code in sqlite_codes(error)):
        return Elsewhere("another transaction is writing to this SQLite file")
    return None
