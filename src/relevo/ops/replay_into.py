"""A replay into another topic: the same messages, ids and keys, published there in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from relevo.consumer.replaying import Tally
from relevo.message import Message
from relevo.outcome import Accepted, Duplicate, PublishOutcome, Rejected
from relevo.policy import PROBE_BACKOFF
from relevo.ports.broker import Delivery, Publisher
from relevo.storage.replaying import Failure


class Forwarder:
    """Publishes pages to ``topic``. What the broker rejects is a failure, and what follows in its key is not sent."""

    def __init__(self, publisher: Publisher, topic: str) -> None:
        self._publisher = publisher
        self._topic = topic
        self._blocked: set[bytes] = set()
        self.held_keys: Sequence[tuple[str, bytes]] = ()

    async def page(self, deliveries: Sequence[Delivery]) -> Tally:
        """Until each is accepted or refused; outages are waited out."""
        tally = Tally()
        left = [msgspec.structs.replace(delivery.message, topic=self._topic) for delivery in deliveries]
        failures = 0
        while left:
            left = self._without_blocked(left, tally)
            now, later = self._split(left)
            outcomes = await self._publisher.publish(now) if now else {}
            again = []
            for index, message in enumerate(now):
                if not self._settled(outcomes.get(index), message, tally):
                    again.append(message)
            failures = failures + 1 if len(again) == len(now) and now else 0
            if failures:
                await asyncio.sleep(PROBE_BACKOFF.delay_s(failures))
            left = again + later
        return tally

    async def renew(self) -> None: ...

    async def rest(self) -> None: ...

    async def aclose(self) -> None:
        await self._publisher.aclose()

    def _split(self, messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
        """What may be handed over together: all, or one of each key where the publisher is not prefix-safe."""
        if self._publisher.capabilities.prefix_safe:
            return list(messages), []
        now: list[Message] = []
        later: list[Message] = []
        seen: set[bytes] = set()
        for message in messages:
            if message.key is not None and message.key in seen:
                later.append(message)
                continue
            if message.key is not None:
                seen.add(message.key)
            now.append(message)
        return now, later

    def _settled(self, outcome: PublishOutcome | None, message: Message, tally: Tally) -> bool:
        match outcome:
            case None | Accepted() | Duplicate():
                tally.handled += 1
            case Rejected(code, reason):
                tally.failures.append(Failure(message, code, reason))
                if message.key is not None:
                    self._blocked.add(message.key)
            case _:
                return False
        return True

    def _without_blocked(self, messages: Sequence[Message], tally: Tally) -> list[Message]:
        kept = []
        for message in messages:
            if message.key is not None and message.key in self._blocked:
                reason = "an earlier message of its key was rejected in this replay"
                tally.failures.append(Failure(message, "Behind", reason))
            else:
                kept.append(message)
        return kept
