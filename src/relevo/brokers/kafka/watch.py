"""Whether what a group reads is still what it has read: a log may be cut before it was read, and a topic may be deleted
and made anew under the same name.

Looked at when a partition is assigned, when an offset is not the one that was expected, and now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from relevo.brokers.kafka.ends import Ends
from relevo.brokers.kafka.identity import replaced
from relevo.brokers.kafka.reader import Reader
from relevo.brokers.kafka.shard import Shard
from relevo.errors import UnreachableError

log = logging.getLogger("relevo.brokers.kafka")

EVERY_S: Final = 30.0
AGAIN_S: Final = 5.0
"""After a look that failed, and at least from one look to the next: a log with many holes is no reason to ask more."""
NOTICES_MAX: Final = 10

Gaps = Mapping[str, Sequence[tuple[int, int]]]


class Watch:
    """Of one subscription. ``shards``: those that are assigned now, by name. ``notices``: its last warnings."""

    def __init__(self, group: str, ends: Ends, shards: Mapping[str, Shard], reader: Reader) -> None:
        self._group = group
        self._ends = ends
        self._shards = shards
        self._reader = reader
        self._due = asyncio.Event()
        self._idle: dict[str, int] = {}
        self.notices: deque[str] = deque(maxlen=NOTICES_MAX)

    def noticing(self, text: str | None) -> None:
        """Log a warning and keep it for the status; look at the positions soon in any case."""
        if text is not None:
            log.warning("group %s: %s", self._group, text)
            self.notices.append(text)
        self._due.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._due.wait()
            self._due.clear()
            try:
                await self.look()
            except UnreachableError as error:
                log.debug("group %s: its positions could not be compared: %s", self._group, error)
                self._due.set()
            await asyncio.sleep(AGAIN_S)

    async def look(self) -> None:
        """Raises ``UnreachableError``; what was to be looked at is then looked at the next time."""
        shards = [shard for shard in self._shards.values() if not shard.leaving]
        if not shards:
            return
        for shard, mark in await self._marks(shards):
            if shard.mark is not None and replaced(shard.mark, mark):
                await self._read_anew(shard, mark)
            else:
                shard.mark = mark
        gaps = {shard.name: list(shard.gaps) for shard in shards}  # those from before the question
        ends = await self._ends.of([(shard.topic, shard.partition) for shard in shards])
        for shard in shards:
            low, high = ends[shard.topic, shard.partition]
            for gap in gaps[shard.name]:
                if shard.gaps and shard.gaps[0] == gap:
                    shard.gaps.popleft()
                    self._compare(shard, *gap, low)
            self._compare_idle(shard, low, high)

    async def _marks(self, shards: Sequence[Shard]) -> list[tuple[Shard, str]]:
        """Of those shards whose topic has a mark, unless another log began there meanwhile."""
        before = [shard.generation for shard in shards]
        found = await self._ends.marks({shard.topic for shard in shards})
        return [
            (shard, found[shard.topic])
            for shard, generation in zip(shards, before, strict=True)
            if shard.topic in found and shard.generation == generation
        ]

    async def _read_anew(self, shard: Shard, mark: str) -> None:
        expected = shard.next
        await self._reader.read_anew(shard.topic, shard.partition, mark)
        self.noticing(
            f"{shard.name}: the topic was deleted and made anew, so that position {expected} of the group belongs to a "
            "log that is gone. The consumer reads the new log from its beginning; what it did not read of the old one "
            "is lost"
        )

    def _compare(self, shard: Shard, expected: int, came: int, low: int) -> None:
        """A log has holes also where nothing is missing; what is missing lies before its first offset."""
        lost = min(came, low) - expected
        if lost > 0:
            self.noticing(
                f"{shard.name}: {lost} positions, {expected} to {expected + lost - 1}, are gone before the group read "
                f"them: the log was cut, by retention or by delete_records, and begins at {low} now. The messages "
                "that stood there are not handled; write them again if they are needed"
            )

    def _compare_idle(self, shard: Shard, low: int, high: int) -> None:
        """Nothing is left in the log, so no record comes that would show it. What is fetched may be on its way: only
        what is the same at the next look counts."""
        expected = shard.next
        if expected is None or not expected < low == high or shard.arrived or any(self._reader.held):
            self._idle.pop(shard.name, None)
        elif self._idle.get(shard.name) != expected:
            self._idle[shard.name] = expected
            self._due.set()
        else:
            del self._idle[shard.name]
            self._compare(shard, expected, low, low)
            shard.next = low
