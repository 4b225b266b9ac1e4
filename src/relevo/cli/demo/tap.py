"""A third subscriber that only counts what is on the wire: how the demo knows that a duplicate really came."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from uuid import UUID

from relevo.brokers import broker_for
from relevo.cli.demo.shop import TOPICS
from relevo.errors import RelevoError
from relevo.settings import BrokerSettings


class Tap:
    """Counts messages and distinct ids on the shop's topics, in a thread with a loop of its own."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)
        self._ids: set[UUID] = set()
        self.messages = 0
        self.ready = threading.Event()

    @property
    def duplicates(self) -> int:
        return self.messages - len(self._ids)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)

    async def _listen(self) -> None:
        broker = broker_for(self._settings.url, self._settings.options)
        subscription = await broker.subscribe("relevo-demo-tap", TOPICS, from_start=False)
        self.ready.set()
        try:
            while not self._stop.is_set():
                with contextlib.suppress(RelevoError):
                    deliveries = await subscription.take(500, 0.2)
                    self.messages += len(deliveries)
                    self._ids.update(delivery.message.event_id for delivery in deliveries)
                    await subscription.settle(deliveries)
        finally:
            await subscription.aclose()
