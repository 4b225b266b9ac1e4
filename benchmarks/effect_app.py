"""The consumer of ``benchmarks.purge`` and ``benchmarks.brokers``: one row per event, and its inbox row."""

from __future__ import annotations

import os

import psycopg

from relevo import Consumer, Event
from relevo.message import Message

TOPIC = os.environ.get("BENCH_TOPIC", "bench")
TYPE = os.environ.get("BENCH_TYPE", "bench.done")
app = Consumer("bench", [TOPIC])


@app.on(TYPE)
def count(event: Event[Message], tx: psycopg.Connection) -> None:
    tx.execute("insert into bench_effect (event_id) values (%s)", (event.id,))
