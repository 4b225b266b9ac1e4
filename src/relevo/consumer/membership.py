"""This process among those of its consumer: its row and its leases, renewed three times per lease."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from relevo._version import __version__
from relevo.consumer.availability import Availability
from relevo.consumer.consumer import Consumer
from relevo.consumer.start import detail_of, enter
from relevo.errors import ConfigError
from relevo.ids import uuid7
from relevo.ports.broker import Subscription
from relevo.ports.database import Database
from relevo.runtime.pulse import Pulse
from relevo.script import Script
from relevo.storage import holding, processes

_running: dict[str, list[tuple[str, ...]]] = {}


def enter_name(consumer: Consumer) -> None:
    """Raises ``ConfigError`` where another consumer of that name runs in this process on other topics."""
    others = _running.setdefault(consumer.name, [])
    for topics in others:
        if set(topics) != set(consumer.topics):
            raise ConfigError(
                f"two consumers named {consumer.name!r} run in this process with different topics, "
                f"{list(topics)} and {list(consumer.topics)}: one group, so each would miss some. Rename one"
            )
    others.append(consumer.topics)


def leave_name(consumer: Consumer) -> None:
    _running[consumer.name].remove(consumer.topics)


@dataclass
class Membership:
    """``owner``: of this start. ``lag``: as it was when it was last asked for; nothing where that is not known."""

    consumer: Consumer
    lease_s: float
    in_flight: Callable[[], int]
    pulse: Pulse
    owner: UUID = field(default_factory=uuid7)
    lag: Mapping[str, int] = field(default_factory=dict)

    async def enter(self, database: Database) -> None:
        """Raises ``ConfigError`` where another consumer obeys the same commands."""
        await enter(self.consumer, self.owner, database, self._registration())

    async def beat(self, database: Availability, subscription: Subscription) -> None:
        """Renew this process's row and the leases of the keys it drains; look at the lag."""
        while True:
            await asyncio.sleep(self.lease_s / 3)
            await database.run(self._registration)
            await database.run(lambda: holding.renew("consumer", self.consumer.name, self.owner, self.lease_s))
            self.pulse.beat("lease")
            try:
                async with asyncio.timeout(self.lease_s / 3):  # the lease is not to wait for it
                    self.lag = await subscription.lag()
            except Exception:  # noqa: BLE001 - the intake says what is wrong with the broker
                self.lag = {}

    def _registration(self) -> Script[None]:
        return processes.register(
            self.owner,
            "consumer",
            self.consumer.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            topics=self.consumer.topics,
            detail=detail_of(self.consumer, self.in_flight(), self.lag),
            lease_s=self.lease_s,
        )
