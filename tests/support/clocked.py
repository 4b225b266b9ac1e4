"""What consumers and effects of the test with wrong clocks do: every run leaves a row that the database dates."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from relevo import Backoff, Consumer, Event, Outbox, Reject, Retry, event
from relevo.effects import EffectRequest, effect, once
from tests.support.ledger.app import begin, connect, execute

TOPIC = os.environ.get("CLOCKED_TOPIC", "clocked")
WAIT_S = 3.0
ACT_S = 1.0
outbox = Outbox()


@event("clocked.tick", key="name", topic=TOPIC)
@dataclass(frozen=True)
class Tick:
    """``then``: ``wait`` comes again after ``WAIT_S``, ``act`` has an effect, ``bad`` is refused until it is fixed."""

    name: str
    number: int
    then: str = ""


books = Consumer(f"books-{TOPIC}", topics=[TOPIC], retry=Backoff(attempts=20, base=timedelta(milliseconds=50)))


@books.on(Tick, inline_retry_s=0)
def handle(event: Event[Tick], tx: Any) -> None:
    tick = event.data
    if tick.then == "wait" and event.attempt == 1:
        raise Retry(after=WAIT_S)
    if tick.then == "bad" and not execute(tx, "select 1 from clocked_fixed"):
        raise Reject("not fixed yet")
    values = {"name": tick.name, "number": tick.number, "event_id": str(event.id)}
    execute(tx, "insert into clocked_run (name, number, event_id) values (:name, :number, :event_id)", **values)
    if tick.then == "act":
        once(tx, "ring", key=event.id, data={"event_id": str(event.id), "url": os.environ["CLOCKED_DATABASE"]})


@effect("ring", timeout_s=3.0)
def ring(request: EffectRequest) -> None:
    """Takes its time within its lease: whoever believed the lease to be over would ring as well."""
    with contextlib.closing(connect(request.data["url"])) as connection:
        begin(connection)
        execute(connection, "insert into clocked_act (event_id) values (:id)", id=request.data["event_id"])
        connection.commit()
    time.sleep(ACT_S)


def make_tables(url: str) -> None:
    now = "cast((julianday('now') - 2440587.5) * 86400000 as integer)"
    at = f"bigint default ({now})" if url.startswith("sqlite") else "timestamptz default clock_timestamp()"
    with contextlib.closing(connect(url)) as connection:
        begin(connection)
        execute(connection, f"create table clocked_run (name text, number integer, event_id text, at {at})")
        execute(connection, "create table clocked_act (event_id text)")
        execute(connection, "create table clocked_fixed (yes integer)")
        connection.commit()
