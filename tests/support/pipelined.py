"""A publisher as Kafka's is: pages are handed over while earlier ones are unconfirmed, and some fail late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from relevo.brokers.refusals import BEHIND
from relevo.outcome import Accepted, PublishOutcome, Rejected, Unavailable, Unconfirmed
from tests.support.relays import FakePublisher


class Pipelined(FakePublisher):
    """Refuses what ``bad`` names when it is handed over; later, now and then, the broker takes nothing more of a call
    and of all that was handed over behind it by then. Topics in ``away`` take nothing. Publishers that are given one
    ``log`` send to one broker."""

    def __init__(
        self, chance: random.Random, bad: set[int], *, log: list[Any] | None = None, fails: float = 0.2
    ) -> None:
        super().__init__()
        self.chance, self.bad, self.fails = chance, bad, fails
        self.away: set[str] = set()
        if log is not None:
            self.log = log
        self._last: asyncio.Future[bool] | None = None

    async def publish(self, messages: Any) -> Mapping[int, PublishOutcome]:
        number = self._refusals.begin()
        # As the real ones: what was handed over is finished in order, even if this caller is cancelled.
        return await self._refusals.told(number, asyncio.create_task(self._publish(number, messages)))

    async def _publish(self, number: int, messages: Any) -> Mapping[int, PublishOutcome]:
        self.calls += 1
        outcomes: dict[int, PublishOutcome] = {}
        handed: list[int] = []
        for index, message in enumerate(messages):
            if self._refusals.closed(number, (message.topic, message.key)):
                outcomes[index] = BEHIND
            elif message.topic in self.away:
                outcomes[index] = Unavailable("away")
            elif int(message.payload) in self.bad:
                outcomes[index] = Rejected("message_too_large", "no")
            else:
                handed.append(index)
                continue
            self._refusals.refuse(number, (message.topic, message.key))
        last, self._last = self._last, asyncio.get_running_loop().create_future()
        mine = self._last
        broken = last is not None and not last.done() and await last
        for _ in range(self.chance.choice((0, 1, 3, 9))):
            await asyncio.sleep(0)
        taken = 0 if broken else len(handed)
        if not broken and self.chance.random() < self.fails:
            taken = self.chance.randrange(len(handed) + 1)
        for index in handed[:taken]:
            self.log.append(messages[index])
        for index in handed[taken:]:
            outcomes[index] = Unconfirmed("taken back")
            self._refusals.refuse(number, (messages[index].topic, messages[index].key))
        mine.set_result(broken or taken < len(handed))
        return outcomes

    async def probe(self, topic: str) -> PublishOutcome:
        return Unavailable("still away") if topic in self.away else Accepted()
