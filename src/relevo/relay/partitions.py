"""Retention by partitions: the outbox's tail is cut, and partitions in which everything is over are dropped whole.

Each act is one short transaction in which the duty is held and the audit written; the server ends it if this process
stands still inside, since writers wait then. What stays, stays for a reason that is said, and is looked at again by the
next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from relevo.errors import ConfigError
from relevo.ports.database import Database
from relevo.relay.purging import DAY_S, STATEMENT_S, Fate, Purge
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.storage import auditing, duties, partitioning
from relevo.storage.auditing import Act
from relevo.storage.duties import Duty
from relevo.storage.partitioning import Cut, Drop, Partition

T = TypeVar("T")

ATTEMPTS: Final = 5
"""How often a lock is asked for in one run."""
BETWEEN_S: Final = 0.5
"""Between two attempts: writers go on meanwhile."""
FROZEN_S: Final = 0.5
"""After which the server ends a transaction that locks writers out and stands still."""

ROUNDED_S: Final = 0.001
"""Times travel as floating point."""

OPEN: Final = "is open"
YOUNG: Final = "has messages that were settled lately"
_REASONS: Final[dict[Drop, str]] = {
    "unsettled": "has messages that are not handed over",
    "unread": "has messages that a group of consumers has not read (relevo groups list)",
    "held": "has messages that are held",
    "kept": "is needed by a replay",
    "open": OPEN,
    "gone": "is not there any more",
}


@dataclass
class PartitionPurge:
    """One run, of ``purge``'s settings and mode. ``duty`` and ``actor``: not needed to count."""

    purge: Purge
    duty: Callable[[], Duty | None] = lambda: None
    actor: str = ""

    async def run(self) -> None:
        """Cut if it is time, then drop what is over. Raises ``ConfigError`` on SQLite."""
        refuse_without(self.purge.database)
        if not self.purge.settings.retention.outbox_days:
            return
        if self._counts:
            self.purge.done.cut = self._due(await self._listed(), await self.purge.before(0.0))
        else:
            await self._cut()
        before_s = await self.purge.before(self.purge.settings.retention.outbox_days * DAY_S)
        for partition, is_open in opened(await self._listed()):
            fate = await self._fate(partition, is_open, before_s)
            self.purge.done.partitions.append(fate)
            self.purge.done.outbox += 0 if fate.why else fate.rows
            await self.purge.between(self.purge.done)

    @property
    def _counts(self) -> bool:
        return self.purge.mode == "count"

    async def _listed(self) -> list[Partition]:
        return await self.purge.batch(lambda limit: partitioning.listed(), read_only=True)

    def _due(self, partitions: Sequence[Partition], now_s: float) -> bool:
        """The first message of what is written to is older than a partition shall cover."""
        first_s = next((p.first_created_s for p, is_open in opened(partitions) if is_open and p.first_created_s), None)
        return first_s is not None and first_s < now_s - self.purge.settings.retention.partition_days * DAY_S

    async def _cut(self) -> None:
        partitions = await self._listed()
        if not self._due(partitions, await self.purge.before(0.0)):
            return
        name = next(p.name for p, is_open in opened(partitions) if is_open)
        said: Cut | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._pause()
            said = await self._act(self._cut_step)
            if said == "promised" and await self._prove():
                said = await self._act(self._cut_step)
            if said in ("cut", "empty"):
                break
        self.purge.done.cut = said == "cut"
        if said not in ("cut", "empty"):
            self.purge.done.partitions.append(Fate(name, 0, f"was not cut: {await self._who()}"))

    async def _prove(self) -> bool:
        """For the first cut of a table that was never cut: its rows are read once, beside everybody's work."""
        proved = await self.purge.database.run(partitioning.prove(), statement_timeout_s=0.0)
        await self.purge.between(self.purge.done)
        return proved

    def _cut_step(self) -> Script[Cut]:
        yield from self._hold()
        said = yield from partitioning.cut()
        if said == "cut":
            yield from auditing.record(Act("purge.cut", self.actor), 0)
            probe("purge.partition")
        return said

    async def _fate(self, partition: Partition, is_open: bool, before_s: float) -> Fate:
        """Drop it, or find out why not."""
        why = _obvious(partition, is_open, before_s)
        if why:
            return Fate(partition.name, partition.rows, why)
        rows, newest_s, why = await self._scan(partition, before_s)
        if why or self._counts:
            return Fate(partition.name, rows, why)
        said: Drop = "locked"
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._pause()
            said = await self._act(lambda: self._drop_step(partition, rows, newest_s))
            if said != "locked":
                break
        if said == "locked":
            return Fate(partition.name, rows, await self._who())
        return Fate(partition.name, rows, "" if said == "dropped" else _REASONS[said])

    def _drop_step(self, partition: Partition, rows: int, newest_s: float) -> Script[Drop]:
        yield from self._hold()
        said = yield from partitioning.drop(partition.name, newest_s + ROUNDED_S)
        if said == "dropped":
            yield from auditing.record(
                Act("purge.partition", self.actor, "", {"partition": partition.name}),
                rows,
                detail={"from_seq": partition.from_seq, "to_seq": partition.to_seq},
            )
            probe("purge.partition")
        return said

    async def _scan(self, partition: Partition, before_s: float) -> tuple[int, float, str]:
        """Every row of it is looked at, page by page, without a lock: how many, the youngest's time, why it must stay.

        What was seen stays true: settled is for ever, and a partition that was cut gets no more rows.
        """
        rows, newest_s, why = 0, 0.0, ""
        after: int | None = max(partition.from_seq - 1, -(2**63))
        while after is not None:
            page = await self.purge.batch(partial(partitioning.scan, after, partition.to_seq, before_s), read_only=True)
            rows += page.seen
            newest_s = max(newest_s, page.newest_s or 0.0)
            why = _REASONS["unsettled"] if page.unsettled else YOUNG if page.young else why
            after = None if why and not self._counts else page.last
            await self.purge.between(self.purge.done)
        return rows, newest_s, why

    async def _act(self, script: Callable[[], Script[T]]) -> T:
        """One transaction that may lock writers out."""
        return await self.purge.database.run(script(), idle_timeout_s=FROZEN_S, statement_timeout_s=STATEMENT_S)

    def _hold(self) -> Script[None]:
        duty = self.duty()
        assert duty is not None
        yield from duties.hold(duty)

    async def _pause(self) -> None:
        await asyncio.sleep(BETWEEN_S)
        await self.purge.between(self.purge.done)

    async def _who(self) -> str:
        """Who kept us out, in words."""
        found = await self.purge.batch(lambda limit: partitioning.inside(), read_only=True)
        if found is None:
            return "somebody had a transaction open in it"
        pid, age_s = found
        who = "a prepared transaction is open" if pid is None else f"pid {pid} has a transaction open"
        return f"{who} in it" + ("" if age_s is None else f", for {age_s:.0f} s")


def opened(partitions: Sequence[Partition]) -> list[tuple[Partition, bool]]:
    """Each with whether it is open: the last two are, the one that is written to and the empty one behind it."""
    return [(partition, place >= len(partitions) - 2) for place, partition in enumerate(partitions)]


def refuse_without(database: Database) -> None:
    """Raise ``ConfigError`` where there are no partitions."""
    if database.dialect != "postgresql":
        raise ConfigError(
            f'{database.url} has no partitions, only PostgreSQL has: set retention.then to "delete" or "archive"'
        )


def _obvious(partition: Partition, is_open: bool, before_s: float) -> str:
    """Why it stays, as far as a glance tells."""
    if is_open:
        return OPEN
    if partition.unsettled:
        return _REASONS["unsettled"]
    if partition.held:
        return _REASONS["held"]
    if partition.kept:
        return _REASONS["kept"]
    if partition.last_settled_s is not None and partition.last_settled_s >= before_s:
        return YOUNG
    return ""
