"""An order shop. Orders are placed and amended; every change is charged exactly once, in order; then a parcel leaves.

    place_order / amend_order ──► shop.order ──► billing ──► shop.payment ──► shipping

Each arrow is an event written in the same transaction as the data it is about. The shop runs on SQLite or PostgreSQL
with a plain driver, and on any broker Relevo knows; nothing in this file says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from database import execute

from relevo import Consumer, Event, Outbox, command, event

outbox = Outbox()


# --- What happens ----------------------------------------------------------------------------------------------------


@event("shop.order.placed", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    total_cents: int


@event("shop.order.amended", key="order_id")
@dataclass(frozen=True)
class OrderAmended:
    order_id: int
    added_cents: int


@command("shop.payment.ship", key="order_id")
@dataclass(frozen=True)
class ShipOrder:
    order_id: int
    paid_cents: int


# --- Writing it with the data ----------------------------------------------------------------------------------------


def place_order(tx: Any, order_id: int, total_cents: int) -> None:
    """The order and the event, in the caller's transaction: both or neither."""
    execute(
        tx,
        "insert into shop_order (order_id, total_cents, version) values (:order_id, :total_cents, 1)",
        order_id=order_id,
        total_cents=total_cents,
    )
    outbox.add(tx, OrderPlaced(order_id, total_cents), aggregate_version=1)


def amend_order(tx: Any, order_id: int, added_cents: int) -> None:
    """The row is changed, and so locked, before the event takes its place: events of an order are in its order."""
    ((version,),) = execute(
        tx,
        "update shop_order set total_cents = total_cents + :added_cents, version = version + 1 "
        "where order_id = :order_id returning version",
        order_id=order_id,
        added_cents=added_cents,
    )
    outbox.add(tx, OrderAmended(order_id, added_cents), aggregate_version=version)


# --- Handling it once ------------------------------------------------------------------------------------------------

billing = Consumer("billing", topics=["shop.order"])
shipping = Consumer("shipping", topics=["shop.payment"])


@billing.on(OrderPlaced)
def charge(event: Event[OrderPlaced], tx: Any) -> None:
    """The charge, the balance and the next command commit together, with the proof that this event was handled."""
    _charge(tx, event, event.data.order_id, event.data.total_cents)
    outbox.add(tx, ShipOrder(event.data.order_id, event.data.total_cents))


@billing.on(OrderAmended)
def charge_difference(event: Event[OrderAmended], tx: Any) -> None:
    _charge(tx, event, event.data.order_id, event.data.added_cents)


@shipping.on(ShipOrder)
def ship(event: Event[ShipOrder], tx: Any) -> None:
    execute(tx, "insert into shop_parcel (order_id) values (:order_id)", order_id=event.data.order_id)


def _charge(tx: Any, event: Event[Any], order_id: int, cents: int) -> None:
    """Nothing here guards against doubles or swaps: if Relevo let one through, the ledger would show it."""
    version = event.aggregate_version
    execute(
        tx,
        "insert into shop_charge (order_id, version, cents, previous) values (:order_id, :version, :cents, "
        "coalesce((select max(version) from shop_charge where order_id = :order_id), 0))",
        order_id=order_id,
        version=version,
        cents=cents,
    )


# --- The shop's own tables and its ledger ----------------------------------------------------------------------------

TABLES = (
    "create table if not exists shop_order (order_id integer primary key, total_cents integer, version integer)",
    "create table if not exists shop_charge (order_id integer, version integer, cents integer, previous integer)",
    "create table if not exists shop_parcel (order_id integer)",
    "create index if not exists shop_charge_order on shop_charge (order_id)",
)


@dataclass(frozen=True)
class Ledger:
    """What the shop decided beside what came of it. ``changes``: events of orders, ``twice`` and ``swapped``: charges
    that happened again or out of order."""

    orders: int
    changes: int
    placed_cents: int
    charges: int
    charged_cents: int
    parcels: int
    twice: int
    swapped: int

    @property
    def holds(self) -> bool:
        return (
            self.charges == self.changes
            and self.charged_cents == self.placed_cents
            and self.parcels == self.orders
            and not self.twice
            and not self.swapped
        )


def ledger(connection: Any) -> Ledger:
    """One consistent look at both sides."""
    ((orders, changes, placed),) = execute(
        connection, "select count(*), coalesce(sum(version), 0), coalesce(sum(total_cents), 0) from shop_order"
    )
    ((charges, charged, swapped),) = execute(
        connection,
        "select count(*), coalesce(sum(cents), 0), "
        "coalesce(sum(case when version <> previous + 1 then 1 else 0 end), 0) from shop_charge",
    )
    ((twice,),) = execute(
        connection,
        "select coalesce(sum(times - 1), 0) from "
        "(select count(*) as times from shop_charge group by order_id, version having count(*) > 1) as repeated",
    )
    ((parcels,),) = execute(connection, "select count(*) from shop_parcel")
    return Ledger(
        int(orders), int(changes), int(placed), int(charges), int(charged), int(parcels), int(twice), int(swapped)
    )
