"""Declared types for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relevo import command, event


@event("shop.order.placed", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    note: Any = ""


@command("billing.charge", key="order_id")
@dataclass(frozen=True)
class ChargeCard:
    order_id: int
