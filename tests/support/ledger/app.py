"""A service whose every change can be held against its effect: accounts that change, books that copy each change.

Nothing here guards against doubles, losses or swaps; the tables have no constraint that could hide one.
"""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from relevo import Backoff, Consumer, Event, Outbox, event
from relevo.clients.sqlite import sqlite_path

TOPIC = os.environ.get("LEDGER_TOPIC", "ledger.account")
"""Runs that share a broker have topics of their own."""
outbox = Outbox()

_NAMED = re.compile(r":(\w+)")


@event("ledger.account.changed", key="account", topic=TOPIC)
@dataclass(frozen=True)
class AccountChanged:
    account: str
    version: int


books = Consumer("books", topics=[TOPIC], retry=Backoff(attempts=50, base=timedelta(milliseconds=50)))


@books.on(AccountChanged)
def copy(event: Event[AccountChanged], tx: Any) -> None:
    """The effect: one row. Its own rising number tells the order in which effects happened within an account."""
    execute(
        tx,
        "insert into ledger_effect (account, version, event_id, previous) values (:account, :version, :event_id, "
        "coalesce((select max(version) from ledger_effect where account = :account), 0))",
        account=event.data.account,
        version=event.data.version,
        event_id=str(event.id),
    )


def connect(url: str) -> Any:
    """A plain driver connection in manual transaction mode."""
    if url.startswith("sqlite"):
        return sqlite3.connect(sqlite_path(url), timeout=30, isolation_level=None)
    import psycopg

    return psycopg.connect(url)


def begin(connection: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("begin immediate")


def execute(connection: Any, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    if not hasattr(connection, "in_transaction"):
        sql = _NAMED.sub(r"%(\1)s", sql)
    cursor = connection.execute(sql, values)
    return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


TABLES = (
    "create table ledger_account (account text primary key, version integer not null)",
    "create table ledger_change (account text, version integer, event_id text)",
    "create table ledger_undone (event_id text)",
    "create table ledger_effect (account text, version integer, event_id text, previous integer)",
    "create index ledger_effect_account on ledger_effect (account, version)",
)
