"""A consumer for a process of its own, which the tests kill. Run with `relevo consume`."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from typing import Any

from relevo import Backoff, Consumer, Event
from tests.support.consumers import insert
from tests.support.events import OrderPlaced

billing = Consumer(
    os.environ.get("TEST_CONSUMER", "billing"),
    [os.environ.get("TEST_TOPIC", "shop.order")],
    retry=Backoff(
        attempts=int(os.environ.get("TEST_ATTEMPTS", "3")),
        base=timedelta(milliseconds=5),
        cap=timedelta(milliseconds=20),
    ),
)
STUCK = int(os.environ.get("TEST_STUCK", "-1"))
KILLER = int(os.environ.get("TEST_KILLER", "-1"))


@billing.on(OrderPlaced)
def handle(event: Event[OrderPlaced], tx: Any) -> None:
    if event.data.order_id == KILLER:
        os.kill(os.getpid(), signal.SIGKILL)
    insert(tx, event.data.order_id, str(event.attempt))
    if event.data.order_id == STUCK:
        print("stuck", flush=True)
        threading.Event().wait()
