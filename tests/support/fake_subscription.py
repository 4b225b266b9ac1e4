"""A log in memory, with the faults a test asks for. It follows the contract of ``relevo.ports.broker`` as a partitioned
log does: contiguous prefixes are committed, a shard that changes hands is read again from there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relevo.errors import UnreachableError
from relevo.message import Message
from relevo.ports.broker import BrokerCapabilities, Delivery


@dataclass
class Shard:
    log: list[tuple[Message, str | None]] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    committed: int = 0
    generation: int = 0
    owner: FakeSubscription | None = None


class FakeBroker:
    """``shards`` logs. The first subscription owns them all; ``assign`` moves one."""

    capabilities = BrokerCapabilities(
        prefix_safe=True,
        ordered_by_key=True,
        keeps_history=True,
        settles_each=False,
        message_bytes_max=None,
        across_machines=False,
    )
    url = "fake:"

    def __init__(self, shards: int = 1) -> None:
        self.shards = {f"s{number}": Shard() for number in range(shards)}
        self.subscriptions: list[FakeSubscription] = []
        self.arrived = asyncio.Event()
        self.down = False

    def append(self, *messages: Message, shard: str = "s0", malformed: str | None = None) -> None:
        self.shards[shard].log.extend((message, malformed) for message in messages)
        self.wake()

    def wake(self) -> None:
        arrived, self.arrived = self.arrived, asyncio.Event()
        arrived.set()

    async def subscribe(
        self, consumer: str, topics: Sequence[str], *, from_start: bool = True, commands: bool = True
    ) -> FakeSubscription:
        if self.down:
            raise UnreachableError("the fake broker is down")
        subscription = FakeSubscription(self)
        self.subscriptions.append(subscription)
        for name, shard in self.shards.items():
            if shard.owner is None:
                subscription.own(name)
        return subscription

    async def assign(self, name: str, to: FakeSubscription, *, silently: bool = False) -> None:
        """Move a shard. ``silently``: the former owner is not asked first, as when it was taken for dead."""
        former = self.shards[name].owner
        if former is not None and former.callback is not None and not silently:
            await former.callback([name])
        to.own(name)
        self.wake()

    def all_settled(self) -> bool:
        return all(shard.committed == len(shard.log) for shard in self.shards.values())

    async def publisher(self, *, source: str, send_timeout_s: float = 5.0) -> Any:
        raise NotImplementedError

    async def ensure_topics(self, topics: Sequence[str]) -> Sequence[str]:
        return ()

    async def check(self) -> None: ...


class FakeSubscription:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.positions: dict[str, int] = {}
        self.callback: Callable[[Sequence[str]], Awaitable[None]] | None = None
        self.paused = False
        self.settles: list[Delivery] = []
        self.handed_back: list[Delivery] = []
        self.closed = False
        self.taken_max = 0

    def own(self, name: str) -> None:
        shard = self.broker.shards[name]
        shard.owner, shard.generation, shard.settled = self, shard.generation + 1, set()
        self.positions[name] = shard.committed

    def owned(self) -> list[str]:
        return [name for name, shard in self.broker.shards.items() if shard.owner is self]

    async def take(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        if self.broker.down:
            raise UnreachableError("the fake broker is down")
        arrived = self.broker.arrived
        found = self._next(max_messages)
        if not found:
            try:
                async with asyncio.timeout(timeout_s):
                    await arrived.wait()
            except TimeoutError:
                return ()
            found = self._next(max_messages)
        self.taken_max = max(self.taken_max, len(found))
        return found

    def _next(self, max_messages: int) -> list[Delivery]:
        found: list[Delivery] = []
        for name in self.owned() if not self.paused else ():
            shard = self.broker.shards[name]
            while self.positions[name] < len(shard.log) and len(found) < max_messages:
                position = self.positions[name]
                self.positions[name] += 1
                if position in shard.settled:
                    continue
                message, malformed = shard.log[position]
                found.append(
                    Delivery(
                        message=message,
                        shard=name,
                        position=position,
                        generation=shard.generation,
                        malformed=malformed,
                    )
                )
        return found

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        self.settles.extend(deliveries)
        for delivery in deliveries:
            if self.owns(delivery):
                shard = self.broker.shards[delivery.shard]
                shard.settled.add(delivery.position)
                while shard.committed in shard.settled:
                    shard.committed += 1

    async def flush(self) -> None: ...

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        self.handed_back.extend(deliveries)
        for delivery in deliveries:
            if self.owns(delivery):
                self.positions[delivery.shard] = min(self.positions[delivery.shard], delivery.position)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.broker.wake()

    def owns(self, delivery: Delivery) -> bool:
        shard = self.broker.shards[delivery.shard]
        return shard.owner is self and shard.generation == delivery.generation

    def on_revoke(self, callback: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self.callback = callback

    async def lag(self) -> Mapping[str, int]:
        return {name: len(self.broker.shards[name].log) - self.broker.shards[name].committed for name in self.owned()}

    async def shard_count(self) -> int:
        return len(self.broker.shards)

    async def aclose(self) -> None:
        self.closed = True
        for name in self.owned():
            self.broker.shards[name].owner = None
            for other in self.broker.subscriptions:
                if not other.closed:
                    other.own(name)
                    self.broker.wake()
                    break
