"""A consumer for `relevo replay` in a process of its own, which the tests kill."""

from __future__ import annotations

from typing import Any

from relevo import Consumer, Event
from relevo.effects import EffectRequest, effect, once
from tests.support.consumers import FAST, insert
from tests.support.events import OrderPlaced

billing = Consumer("billing", ["shop.order"], retry=FAST)


@effect("charge-card")
def charge(request: EffectRequest) -> None: ...


@billing.on(OrderPlaced)
def handle(event: Event[OrderPlaced], tx: Any) -> None:
    insert(tx, event.data.order_id, "replayed" if event.replayed else "live")
    once(tx, charge, key=event.data.order_id)
