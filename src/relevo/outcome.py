"""Outcomes: what happened to one message. Adapters classify by code and type, never by text.

The table in ARCHITECTURE §6 as types; ``relevo.decide`` says what follows from each.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker confirmed it, or the handler's transaction committed."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Already there: the broker or the inbox knows this id. As good as accepted."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nothing was sent: connection refused, not leader, throttled. An outage is never the message's fault."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Sent, but the confirm did not come. The same message goes again, with the same id."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The broker will not take this message, now or later: too large, no such topic, not authorised, not routable.

    ``code`` is the broker's own name of the reason.
    """

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised. ``error_type`` is the exception's qualified name, ``error`` its text (cut, cleaned)."""

    error_type: str
    error: str


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """The handler raised ``Retry(after=…)``."""

    after: timedelta
    reason: str


@dataclass(frozen=True, slots=True)
class RejectAsked:
    """The handler raised ``Reject(reason)``, or the message cannot be decoded or has no handler."""

    reason: str
    error_type: str = ""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Serialization failure or deadlock, by SQLSTATE. Rerun in a fresh transaction, no attempt spent."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """The reply to COMMIT was lost. Look the inbox row up before anything else."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Shutdown or cancellation; not an outcome of the message. Hand back, attempt refunded."""


PublishOutcome = Accepted | Duplicate | Unavailable | Unconfirmed | Rejected | Cancelled
HandleOutcome = (
    Accepted | Duplicate | Failed | RetryAsked | RejectAsked | Conflict | Ambiguous | Unavailable | Cancelled
)
Outcome = PublishOutcome | HandleOutcome
