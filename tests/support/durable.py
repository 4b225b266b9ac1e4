"""A durable consumer for a process of its own, which the tests kill. Run with `relevo consume`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from relevo import Backoff, Consumer, Event
from tests.support.consumers import insert
from tests.support.events import OrderPlaced

billing = Consumer(
    "billing",
    ["shop.order"],
    retry=Backoff(attempts=3, base=timedelta(milliseconds=5), cap=timedelta(milliseconds=20)),
    durable=True,
)


@billing.on(OrderPlaced)
def handle(event: Event[OrderPlaced], tx: Any) -> None:
    insert(tx, event.data.order_id)
