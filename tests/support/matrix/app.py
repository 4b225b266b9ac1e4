"""The ledger's service with what only the matrix needs: a key whose messages fail at first, and an outward act."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from datetime import timedelta
from typing import Any

from relevo import Backoff, Consumer, Event, Reject, Retry
from relevo.effects import Done, EffectRequest, NotDone, effect, once
from tests.support.ledger import app as ledger
from tests.support.ledger.app import TOPIC, AccountChanged, begin, connect, execute

SICK = "a0"
"""Its messages are told to come later at their first run: they go through the key's queue."""
BAD = {"a1", "a2"} if os.environ.get("LEDGER_BAD") else set()
"""Accounts whose messages are refused until the ledger is fixed."""
DURABLE = bool(os.environ.get("LEDGER_DURABLE"))
"""Whether messages are stored first and handled from the table."""
ACTS = bool(os.environ.get("LEDGER_ACTS"))
"""Whether each change is followed by an outward act."""

books = Consumer("books", topics=[TOPIC], retry=Backoff(attempts=50, base=timedelta(milliseconds=50)))


@books.on(AccountChanged, on_replay="apply", inline_retry_s=0, durable=DURABLE)
def copy(event: Event[AccountChanged], tx: Any) -> None:
    if event.data.account == SICK and event.attempt == 1 and not event.replayed:
        raise Retry(after=0.1)
    if event.data.account in BAD and not execute(tx, "select 1 from ledger_fixed"):
        raise Reject("a defect, not fixed yet")
    if event.replayed:
        execute(tx, "insert into ledger_replayed values (:event_id)", event_id=str(event.id))
    else:
        ledger.copy(event, tx)
    if ACTS:
        url = os.environ["LEDGER_DATABASE"]
        once(tx, "ship", key=event.id, data={"event_id": str(event.id), "url": url})


def _acts(request: EffectRequest) -> list[tuple[Any, ...]]:
    with contextlib.closing(connect(request.data["url"])) as connection:
        sql = "select event_id from ledger_act where event_id = :event_id"
        return execute(connection, sql, event_id=request.data["event_id"])


def look(request: EffectRequest) -> Done | NotDone:
    return Done(None) if _acts(request) else NotDone("not shipped")


@effect("ship", verify=look, timeout_s=4.0, retry=Backoff(attempts=20, base=timedelta(milliseconds=50)))
def ship(request: EffectRequest) -> None:
    """The outward act: a row in another table, on a connection of its own, that nothing guards against doubles. It ends
    within its time-out, as an act must: one that goes on behind it could be found undone and be done again."""
    with contextlib.closing(connect(request.data["url"])) as connection:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("pragma busy_timeout = 1000")
        begin(connection)
        values = {"event_id": request.data["event_id"], "key": str(request.idempotency_key)}
        execute(connection, "insert into ledger_act values (:event_id, :key)", **values)
        connection.commit()


def payload_of(body: bytes | None) -> tuple[str, int]:
    """Account and version of a message on the wire."""
    data = json.loads(body or b"{}")
    return data["account"], data["version"]
