"""A consumer that only counts: ``relevo consume benchmarks.counting:counter``. Topics come from ``BENCH_TOPICS``."""

from __future__ import annotations

import os
from typing import Any

from relevo import Consumer, Event

counter = Consumer("counter", topics=os.environ.get("BENCH_TOPICS", "bench.order").split(","))


@counter.on("bench.order.placed")
def count(event: Event[Any], tx: Any) -> None:
    """Nothing beside the inbox row that Relevo writes."""
