"""This process's side of the in-flight journal: one write per batch, and what is settled forgotten with the next."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from relevo.consumer.availability import Availability
from relevo.storage import journaling
from relevo.storage.journaling import Found


class Journal:
    """Used from one event loop. ``owner`` is new for every start, so rows of an earlier life are somebody else's."""

    def __init__(self, consumer: str, owner: UUID, database: Availability) -> None:
        self._consumer = consumer
        self._owner = owner
        self._database = database
        self._settled: list[str] = []

    async def taken(self, event_ids: Sequence[str]) -> dict[UUID, Found]:
        """Write a batch down and forget what was settled since; returns what earlier owners left behind."""
        while not set(self._settled).isdisjoint(event_ids):
            await self.flush()  # it was done, and begins anew
        settled, self._settled = self._settled, []
        return await self._database.run(
            lambda: journaling.take(self._database.dialect, self._consumer, self._owner, event_ids, settled),
            single=True,
        )

    async def count(self, event_id: UUID, attempts: int) -> None:
        """Commit the number of an attempt before it is made."""
        await self._database.run(lambda: journaling.count(self._consumer, self._owner, event_id, attempts))

    def settled(self, event_id: str) -> None:
        """Done; its row goes with the next write."""
        self._settled.append(event_id)

    async def flush(self) -> None:
        """Forget what is settled now, when there is no next batch in sight."""
        if self._settled:
            settled, self._settled = self._settled, []
            await self._database.run(lambda: journaling.remove(self._consumer, self._owner, settled))

    async def hand_back(self, event_ids: Sequence[UUID]) -> None:
        """Given back in good order: nobody's suspects."""
        if event_ids:
            await self._database.run(lambda: journaling.hand_back(self._consumer, self._owner, event_ids))
