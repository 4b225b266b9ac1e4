"""What people paused, as a replay sees it: it handles nothing that a live process would not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.ports.broker import Delivery
from relevo.ports.database import Database
from relevo.storage import pausing
from relevo.storage.pausing import Pause


@dataclass(frozen=True, slots=True)
class Watch:
    """For one replay: into ``into`` if given, else of ``consumer``. ``look_s``: how often to look while it waits."""

    database: Database
    consumer: str
    into: str | None = None
    look_s: float = pausing.LOOK_S

    async def stops(self, deliveries: Sequence[Delivery]) -> str | None:
        """What keeps this page from being handled now, in plain words; the whole replay waits then, since it goes on in
        one order. Asked before every page."""
        pauses = await self.database.run(pausing.load(), read_only=True)
        for pause in pauses.all:
            if self._stopped_by(pause, deliveries):
                what = f"{pause.target.kind} {pause.target.name}"
                return f"{what} is paused by {pause.who}: {pause.why}"
        return None

    def _stopped_by(self, pause: Pause, deliveries: Sequence[Delivery]) -> bool:
        target = pause.target
        if self.into is not None:
            if target.kind in ("topic", "destination"):
                return target.topic == self.into and bool(deliveries)
            return (
                target.kind == "key"
                and (target.consumer, target.topic) == ("", self.into)
                and any(each.message.key == target.key for each in deliveries)
            )
        if target.kind == "consumer":
            return target.consumer == self.consumer
        if target.kind == "topic":
            return any(each.message.topic == target.topic for each in deliveries)
        return (
            target.kind == "key"
            and target.consumer == self.consumer
            and any((each.message.topic, each.message.key) == (target.topic, target.key) for each in deliveries)
        )
