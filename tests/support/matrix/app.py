"""The ledger's service with what only the matrix needs: a key whose messages fail at first, and an outward act."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from relevo import Backoff, Consumer, Event, Reject, Retry
from relevo.effects import once
from tests.support.ledger import app as ledger
from tests.support.ledger.app import TOPIC, AccountChanged, execute

SICK = "a0"
"""Its messages are told to come later at their first run: they go through the key's queue."""
BAD = {"a1", "a2"} if os.environ.get("LEDGER_BAD") else set()
"""Accounts whose messages are refused until the ledger is fixed."""
DURABLE = bool(os.environ.get("LEDGER_DURABLE"))
"""Whether messages are stored first and handled from the table."""
ACTS = bool(os.environ.get("LEDGER_ACTS"))
"""Whether each change is followed by an outward act: ``acts.py``."""

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


def payload_of(body: bytes | None) -> tuple[str, int]:
    """Account and version of a message on the wire."""
    data = json.loads(body or b"{}")
    return data["account"], data["version"]
