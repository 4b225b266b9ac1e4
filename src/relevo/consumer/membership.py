"""This process among those of its consumer: its row and its leases, renewed three times per lease."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from relevo._version import __version__
from relevo.consumer.availability import Availability
from relevo.consumer.consumer import Consumer
from relevo.consumer.start import detail_of, enter
from relevo.errors import ConfigError
from relevo.ids import uuid7
from relevo.ports.broker import Notices, Subscription
from relevo.ports.database import Database
from relevo.runtime.patience import reason_of
from relevo.runtime.pulse import Pulse
from relevo.script import Script
from relevo.storage import holding, processes
from relevo.telemetry.often import Often

log = logging.getLogger("relevo.consumer")
_often: Final = Often(log, first=1, window_s=60.0)

FIRST_LOOK_S: Final = 3.0
"""Until it is looked at first whether this process has anything to read from."""
WAITS: Final = (
    "no partition or queue is assigned to this process: it is waiting for the group to rebalance, which takes as long "
    "as the session of a member that was killed (Kafka: 15 s by default), or other members read all there is"
)
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
    """``owner``: of this start. ``lag``: as it was when it was last asked for; ``None`` where it is not known, since
    the broker does not answer or nothing of it belongs to this process. ``waits_for``: why nothing does.
    ``notices``: the broker's warnings about messages that are gone. ``about``: what else the others can know."""

    consumer: Consumer
    lease_s: float
    in_flight: Callable[[], int]
    pulse: Pulse
    owner: UUID = field(default_factory=uuid7)
    lag: Mapping[str, int] | None = None
    waits_for: str | None = None
    notices: list[str] = field(default_factory=list)
    about: Callable[[], Mapping[str, Any]] = dict

    async def enter(self, database: Database) -> None:
        """Raises ``ConfigError`` where another consumer obeys the same commands."""
        await enter(self.consumer, self.owner, database, self._registration())

    async def beat(self, database: Availability, subscription: Subscription) -> None:
        """Renew this process's row and the leases of the keys it drains; look at the lag."""
        pulse = self.pulse
        pulse.begin("lease")
        await asyncio.sleep(min(FIRST_LOOK_S, self.lease_s / 3))
        while True:
            await self._look(subscription)
            await database.run(self._registration)
            await database.run(lambda: holding.renew("consumer", self.consumer.name, self.owner, self.lease_s))
            pulse.beat("lease")
            await asyncio.sleep(self.lease_s / 3)

    async def _look(self, subscription: Subscription) -> None:
        """At the lag; by the way, whether the broker answers and gives this process anything."""
        pulse = self.pulse
        pulse.begin("broker")
        self.notices = list(subscription.notices) if isinstance(subscription, Notices) else []
        try:
            async with asyncio.timeout(self.lease_s / 3):  # the lease is not to wait for it
                found = await subscription.lag()
        except Exception as error:  # noqa: BLE001 - after any error the lag is not known
            self.lag = None
            why = "no answer in time" if isinstance(error, TimeoutError) else reason_of(error)
            _often.log(
                logging.INFO,
                self.consumer.name,
                f"times the lag of consumer {self.consumer.name} was not known",
                "consumer %s: the lag is not known: %s",
                *(self.consumer.name, why),
            )
            return
        self.lag = found or None
        if found:
            pulse.beat("broker")
        pulse.rest("broker")
        self._tell(len(found))

    def _tell(self, shards: int) -> None:
        """Log a change between nothing to read from and something."""
        if not shards and self.waits_for is None:
            self.waits_for = WAITS
            log.warning("consumer %s: %s", self.consumer.name, WAITS)
        elif shards and self.waits_for is not None:
            self.waits_for = None
            log.info("consumer %s: reads from %d partitions or queues now", self.consumer.name, shards)

    def reading(self) -> Mapping[str, Any]:
        """For the status."""
        return {"waits_for": self.waits_for, "notices": list(self.notices)}

    def _registration(self) -> Script[None]:
        return processes.register(
            self.owner,
            "consumer",
            self.consumer.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            topics=self.consumer.topics,
            detail={
                **detail_of(self.consumer, self.in_flight(), self.lag),
                **self.reading(),
                **self.about(),
            },
            lease_s=self.lease_s,
        )
