"""The consumer of ``benchmarks.purge``: one row per event, and its inbox row."""

from __future__ import annotations

import os

import psycopg

from relevo import Consumer, Event
from relevo.message import Message

TOPIC = os.environ.get("BENCH_TOPIC", "bench")
app = Consumer("bench", [TOPIC])


@app.on("bench.done")
def count(event: Event[Message], tx: psycopg.Connection) -> None:
    tx.execute("insert into bench_effect (event_id) values (%s)", (event.id,))
