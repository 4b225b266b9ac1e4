"""The page on classification: what the code answers for every error code, asked one by one."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from relevo import decide as deciding
from relevo.brokers.embedded import file as embedded
from relevo.brokers.kafka import outcomes as kafka
from relevo.brokers.rabbitmq import outcomes as rabbitmq
from relevo.clients import sqlstate
from relevo.outcome import (
    Accepted,
    Ambiguous,
    Cancelled,
    Conflict,
    Duplicate,
    Failed,
    Outcome,
    RejectAsked,
    Rejected,
    RetryAsked,
    Unavailable,
    Unconfirmed,
)
from relevo.policy import Policy
from relevo.runtime.classify import Stage, classify

OUTCOMES: tuple[Outcome, ...] = (
    Accepted(),
    Duplicate(),
    Unavailable(""),
    Unconfirmed(""),
    Rejected("", ""),
    Failed("", ""),
    RetryAsked(timedelta(seconds=60), ""),
    RejectAsked(""),
    Conflict(""),
    Ambiguous(""),
    Cancelled(),
)
STAGES: tuple[Stage, ...] = ("begin", "ours", "handler", "commit")
SQLSTATES = {
    "08000": "connection exception",
    "08006": "connection failure",
    "08007": "transaction resolution unknown",
    "22001": "a value too long",
    "23505": "unique violation",
    "25006": "read-only transaction",
    "3F000": "no such schema",
    "40001": "serialization failure",
    "40003": "statement completion unknown",
    "40P01": "deadlock",
    "42501": "insufficient privilege",
    "42P01": "no such table",
    "42703": "no such column",
    "53300": "too many connections",
    "53100": "disk full",
    "55P03": "lock not available",
    "57014": "query cancelled (`statement_timeout`)",
    "57P01": "admin shutdown",
    "57P03": "cannot connect now",
    "25P03": "idle in transaction for too long (this process stood still)",
    "58030": "i/o error",
    "28P01": "wrong password",
}
SQLITE = ("BUSY", "LOCKED", "FULL", "IOERR", "READONLY", "CANTOPEN", "NOTADB", "CORRUPT", "CONSTRAINT", "ERROR", "PERM")


class _Coded(Exception):
    sqlstate: str | None = None


def page() -> str:
    """The body of docs/reference/classification.md."""
    return "\n".join(
        [
            "What an error means is decided by its code or type, never by its text. An *outage* is never a message's "
            "fault: its destination pauses, is probed with backoff, resumes by itself, and no attempt is spent.\n",
            "## What follows from an outcome\n",
            *_follows(),
            "## Kafka\n",
            kafka.table(),
            "## RabbitMQ\n",
            rabbitmq.table(),
            "## Embedded\n",
            "A topic that does not exist is *rejected*, `unknown_topic`; a message "
            "above `message_bytes_max` is "
            "*rejected*, `message_too_large`. A call is one transaction, so every other error means that nothing was "
            "stored:\n",
            *_embedded(),
            "## The database, in a consumer's transaction\n",
            "By SQLSTATE (PostgreSQL, whichever driver), by the stage in which it came: taking the "
            "connection, "
            "Relevo's own statements, the handler and its flush, COMMIT. *Lost* is any error after which this "
            "transaction's connection is closed. A handler that cannot reach some *other* service has failed.\n",
            *_transactions(),
            "## The database, in Relevo's own connections\n",
            "For relay, bookkeeping and tools: `UnreachableError` is waited out, `SchemaError` ends with exit code 78 "
            "at the start and is waited out later.\n",
            *_own(),
        ]
    )


def _follows() -> Iterator[str]:
    yield "| outcome | what it says | what follows, with the default policy |\n|---|---|---|"
    for outcome in OUTCOMES:
        decided = deciding.decide(outcome, 1, Policy())
        decision = type(decided)
        said = " ".join(inspect.cleandoc(type(outcome).__doc__ or "").split("\n\n")[0].split())
        then = " ".join(inspect.cleandoc(decision.__doc__ or "").replace("``", "`").split())
        if isinstance(decided, deciding.Again):
            then = then.partition(" `counts`")[0] + (
                " An attempt is spent." if decided.counts else " No attempt is spent."
            )
        yield f"| {type(outcome).__name__} | {said.replace('``', '`')} | **{decision.__name__}**: {then} |"
    yield ""


def _embedded() -> Iterator[str]:
    yield "| SQLite's code | outcome | `check` and `take` raise |\n|---|---|---|"
    for name in SQLITE:
        error = embedded.explain(_sqlite_error(name), Path("broker.db"))
        yield f"| `SQLITE_{name}` | unavailable | `{type(error).__name__}` |"
    yield ""


def _transactions() -> Iterator[str]:
    yield "| error | " + " | ".join(STAGES) + " |\n|---|" + "---|" * len(STAGES)
    for code, meaning in SQLSTATES.items():
        yield _row(f"`{code}` {meaning}", _with_code(code), broken=False)
    for name in SQLITE:
        yield _row(f"`SQLITE_{name}`", _sqlite_error(name), broken=False)
    yield _row("any other exception", ValueError(), broken=False)
    yield _row("*lost*, whatever the code", _with_code("08006"), broken=True)
    yield ""


def _row(what: str, error: Exception, *, broken: bool) -> str:
    found = [type(classify(error, stage, broken=broken)).__name__.lower() for stage in STAGES]
    return f"| {what} | " + " | ".join(found) + " |"


def _own() -> Iterator[str]:
    yield "| code | error |\n|---|---|"
    for code, meaning in SQLSTATES.items():
        yield f"| `{code}` {meaning} | {_name(sqlstate.explain(code, '', ''))} |"
    for name in SQLITE:
        yield f"| `SQLITE_{name}` | {_name(sqlstate.explain_sqlite(_sqlite_error(name), ''))} |"
    yield ""


def _name(error: Any) -> str:
    return "the driver's own" if error is None else f"`{type(error).__name__}`"


def _with_code(code: str) -> Exception:
    error = _Coded()
    error.sqlstate = code
    return error


def _sqlite_error(name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError()
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{name}")
    error.sqlite_errorname = f"SQLITE_{name}"
    return error
