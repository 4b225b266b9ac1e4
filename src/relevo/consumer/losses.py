"""A database that fails while a handler runs: an outage, or something that this message's handler does to it.

A statement that ends its connection, a pause beyond the server's idle time-out, a backend that crashes: each looks like
an outage, and each comes again with the same message. So it counts as a failed attempt from the second time in a row
on, whether or not the database answers at once. The first one spends no attempt: an outage does not, and a server that
is started again or a failover ends the connections of many messages at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from relevo.outcome import Ambiguous, Conflict, Failed, Unavailable

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class DatabaseLost:
    """The handler had begun when the database failed. ``scarce``: the connection is whole, and the server lacks room,
    memory or a file: an outage, unless there is room for others."""

    error_type: str
    error: str
    scarce: bool = False


class Witness(Protocol):
    """What is known about the database."""

    @property
    def commits(self) -> int:
        """Transactions of handlers that were committed so far."""

    async def answers(self) -> bool:
        """Whether it answers at once."""

    async def writes(self) -> bool:
        """Whether it takes a small write at once."""

    def down(self, reason: str) -> None:
        """It does not."""


class Losses:
    """Those of one message, in a row."""

    __slots__ = ("_commits", "_count")

    def __init__(self) -> None:
        self._count = self._commits = 0

    async def weigh(self, lost: DatabaseLost, witness: Witness) -> Failed | Unavailable | Conflict:
        """Whose fault it is. A first one alone spends no attempt: the message runs again, at once where the database
        answers."""
        self._count += 1
        first = self._count == 1
        before, self._commits = self._commits, witness.commits
        text = f"the database failed while the handler ran: {lost.error}"
        if lost.scarce:
            # Its own statement alone finds no room: others have committed since its last failure, or, on a quiet
            # consumer, a small write works right after this failure.
            if first or (witness.commits == before and not await witness.writes()):
                return Unavailable(f"{lost.error_type}: {text}")
        elif not await witness.answers():
            witness.down(f"{lost.error_type}: {text}")
            if first:
                return Unavailable(f"{lost.error_type}: {text}")
        elif first:
            return Conflict(f"{lost.error_type}: {text}")
        return Failed(lost.error_type, text)


def unknown_end(outcome: Ambiguous) -> DatabaseLost:
    """The reply to COMMIT was lost, and the transaction was not committed."""
    error_type, _, text = outcome.reason.partition(": ")
    return DatabaseLost(error_type, text)


def passes(outcome: object) -> bool:
    """Whether losses before and after ``outcome`` are in a row: it says nothing about the message."""
    return isinstance(outcome, Unavailable | Conflict)
