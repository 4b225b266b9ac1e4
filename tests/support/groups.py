"""A database that is its own broker: consumers read its outbox as groups."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from relevo.brokers import broker_for
from relevo.ports.broker import Broker, Delivery, Subscription
from relevo.settings import BrokerSettings, RelaySettings, RetentionSettings, Settings
from tests.support.log_stores import LogStore
from tests.support.waiting import eventually

OPTIONS: dict[str, Any] = {"lease_s": 1.5, "poll_max_s": 0.05}
TOPIC = "shop.order"
GROUP = "billing"


class GroupStore(LogStore):
    """As ``LogStore``, and a broker."""

    @property
    def broker(self) -> Broker:
        return self.make_broker()

    @property
    def make_broker(self) -> functools.partial[Broker]:
        """Picklable, for another process."""
        return functools.partial(broker_for, self.url, OPTIONS)

    @property
    def whole(self) -> Settings:
        """Database and broker are one; the URL of the broker is spelled in another way."""
        return Settings(
            database=self.settings,
            broker=BrokerSettings(url=self.url.replace("postgresql:", "postgres:") + "?connect_timeout=7"),
            relay=RelaySettings(source="log", lease_s=3.0, send_timeout_s=1.0),
            retention=RetentionSettings(outbox_days=7, pause_s=0.0),
        )

    def behind(self, group: str = GROUP) -> int:
        """Rows that the stored cursors of a group have not passed, by number or by transaction."""
        return int(
            self.query(
                "select count(*) from relevo_outbox o join relevo_group_lane l on l.lane = (o.bucket & 63) "
                f"where l.group_name = '{group}' and not (o.seq <= l.high_water "
                "and pg_visible_in_snapshot(o.tx, cast(l.snapshot as pg_snapshot)))"
            )[0][0]
        )

    async def read_by_all(self, *members: Subscription) -> None:
        """Have ``members`` look, until retention can see that every stored cursor of every group has passed all."""

        async def passed() -> bool:
            for each in members:
                assert await each.take(10, 0.05) == []
            rows = self.query(
                "select coalesce(bool_and(l.high_water >= o.seq and "
                "pg_snapshot_xmin(l.snapshot::pg_snapshot)::text::bigint > o.tx), true) from relevo_group_lane l, "
                "(select max(seq) as seq, max(tx::text::bigint) as tx from relevo_outbox) o"
            )
            return bool(rows[0][0])

        await eventually(passed, what="every group has passed every row", timeout_s=180)


@contextlib.asynccontextmanager
async def member(
    store: GroupStore, group: str = GROUP, topics: Sequence[str] = (TOPIC,), **how: Any
) -> AsyncIterator[Subscription]:
    joined = await store.broker.subscribe(group, topics, **how)
    try:
        yield joined
    finally:
        await joined.aclose()


async def take(subscription: Subscription, count: int, *, settle: bool = True) -> list[Delivery]:
    """Exactly the next ``count``."""
    found: list[Delivery] = []

    async def enough() -> bool:
        found.extend(await subscription.take(count - len(found), 0.2))
        return len(found) >= count

    await eventually(enough, what=f"{count} deliveries")
    if settle:
        await subscription.settle(found)
        await subscription.flush()
    return found


def numbers(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(delivery.message.payload or b"") for delivery in deliveries]
