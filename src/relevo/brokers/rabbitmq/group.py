"""Who else consumes under our name: members say so once a second on a fanout exchange.

A single active consumer makes a queue safe to share, but the server gives all queues to whoever came first. So members
know of each other and take every n-th queue. Nothing depends on this for order: if two disagree for a while, the server
still gives each queue to one of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from relevo.ids import uuid7

TELL_EVERY_S: Final = 1.0


class Group:
    """One member's view, used from one event loop. ``changed`` is called when queues may have to move."""

    def __init__(self, consumer: str, topics: Sequence[str], timeout_s: float, changed: Callable[[], None]) -> None:
        self._exchange = f"relevo.group:{consumer}"
        self._topics = sorted(topics)
        self._timeout_s = timeout_s
        self._changed = changed
        self._others: dict[str, tuple[float, frozenset[str]]] = {}
        self._channel: Any = None
        self._asked = asyncio.Event()
        self.id = str(uuid7())  # in the order of joining: who comes last moves least

    async def join(self, connection: Any) -> None:
        self._others.clear()
        channel = self._channel = await connection.channel(publisher_confirms=False)
        # Kept when nobody is bound: one that deletes itself can go between this declaration and our binding, when the
        # last other member leaves just then.
        await channel.exchange_declare(self._exchange, exchange_type="fanout", durable=True)
        declared = await channel.queue_declare(exclusive=True, auto_delete=True)
        await channel.queue_bind(declared.queue, self._exchange)
        await channel.basic_consume(declared.queue, self._heard, no_ack=True)
        await self.tell()

    async def tell(self, *, leaving: bool = False) -> None:
        """Say that we are here, or leave."""
        if self._channel is None:
            return  # not joined yet
        body = json.dumps({"member": self.id, "topics": self._topics, "leaving": leaving}).encode()
        await self._channel.basic_publish(body, exchange=self._exchange, wait=False)

    async def keep_telling(self) -> None:
        """Once a second, and at once when a newcomer asks. Until the connection breaks."""
        while True:
            try:
                async with asyncio.timeout(TELL_EVERY_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            await self.tell()
            if self._expire():
                self._changed()

    def mine(self, shards: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Which of ``shards`` (topic, number) are ours: the i-th goes to the i-th of those who want its topic."""
        self._expire()
        found = []
        for index, (topic, number) in enumerate(shards):
            members = sorted([self.id, *(name for name, (_, topics) in self._others.items() if topic in topics)])
            if members[index % len(members)] == self.id:
                found.append((topic, number))
        return found

    def _expire(self) -> bool:
        oldest = asyncio.get_running_loop().time() - self._timeout_s
        gone = [name for name, (heard, _) in self._others.items() if heard < oldest]
        for name in gone:
            del self._others[name]
        return bool(gone)

    async def _heard(self, delivered: Any) -> None:
        try:
            told = json.loads(delivered.body)
            name, topics, leaving = str(told["member"]), frozenset(map(str, told["topics"])), bool(told["leaving"])
        except (ValueError, TypeError, KeyError):
            return  # a stranger's
        if name == self.id:
            return
        known = self._others.get(name)
        if leaving:
            self._others.pop(name, None)
        else:
            self._others[name] = (asyncio.get_running_loop().time(), topics)
            if known is None:
                self._asked.set()  # it does not know us yet
        if leaving or known is None or known[1] != topics:
            self._changed()
