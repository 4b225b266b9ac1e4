"""The effects of one process: claim what is due, a few at once, until told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from relevo import signals
from relevo.bounds import answer_s
from relevo.clients import database_for
from relevo.effects.declaring import Effect
from relevo.effects.performer import Performer
from relevo.effects.recording import CHANNEL
from relevo.errors import ConfigError, UnreachableError
from relevo.ids import uuid7
from relevo.policy import PROBE_BACKOFF
from relevo.ports.database import Database
from relevo.runtime.clock import boottime_s
from relevo.settings import Settings
from relevo.storage import effecting
from relevo.storage.ready import ensure_ready

log = logging.getLogger("relevo.effects")


@dataclass(frozen=True, slots=True)
class EffectsHealth:
    """``live``: the loop runs. ``ready``: effects are claimed. ``problems``: what is unavailable, by name."""

    live: bool
    ready: bool
    problems: Mapping[str, str]
    detail: Mapping[str, Any]


class EffectRunner:
    """Performs ``effects`` until ``stop``; as many runners as you like, in any number of processes. One event loop,
    once.

    ``database``: one that is open already; it stays open.
    """

    def __init__(
        self,
        effects: Iterable[Effect],
        settings: Settings,
        *,
        database: Database | None = None,
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        self.effects = {effect.name: effect for effect in effects}
        if not self.effects:
            raise ConfigError("there is no effect to perform: declare one with @effect, webhook() or email()")
        self._settings = settings
        self._given = database
        self._clock = clock
        self._holder: UUID = uuid7()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = signals.subscribe(CHANNEL)
        self._stopping = False
        self.problem: str | None = "not started"

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None] | None = None) -> None:
        """Until ``stop`` and what is being performed has ended, its time-out at most. Outages are waited out. Raises
        ``SchemaError`` when the tables do not fit. Cancellation leaves at once: acts under way are *unknown* then."""
        database = self._given or database_for(
            self._settings.database, answer_s=answer_s(self._settings.consumer.lease_s)
        )
        stopping = asyncio.create_task(self._woken_by(stop))
        try:
            await self._start(database, stop)
            if on_ready is not None:
                on_ready()
            failures = 0
            while not stop.is_set():
                try:
                    busy = await self._turn(database)
                    self.problem, failures = None, 0
                except UnreachableError as error:
                    failures += 1
                    if self.problem is None:
                        log.warning("effects wait: the database does not answer (%s); trying again", error)
                    self.problem = str(error)
                    await self._wake.wait(PROBE_BACKOFF.delay_s(failures))
                    continue
                if not busy:
                    await self._wake.wait(self._settings.effects.poll_s)
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            stopping.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._wake.close()
            if self._given is None:
                await database.aclose()

    def health(self) -> EffectsHealth:
        """From memory, at once."""
        problems = {} if self.problem is None else {"database": self.problem}
        detail = {"effects": sorted(self.effects), "under_way": len(self._tasks), "stopping": self._stopping}
        return EffectsHealth(
            live=True, ready=not problems and not self._stopping, problems=problems, detail={"performing": detail}
        )

    async def _start(self, database: Database, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            try:
                await ensure_ready(database, self._settings)
                return
            except UnreachableError as error:
                failures += 1
                self.problem = str(error)
                await self._wake.wait(PROBE_BACKOFF.delay_s(failures))

    async def _turn(self, database: Database) -> bool:
        """Claim what is due. Whether to look again at once."""
        for name, key in await database.run(effecting.expire(list(self.effects))):
            log.warning("effect %s/%s: its performer was lost; the outcome is unknown", name, key)
        claimed = 0
        for effect in self.effects.values():
            free = self._settings.effects.at_once - len(self._tasks)
            if free <= 0:
                break
            claimed += await self._claim(database, effect, free)
        return claimed > 0 and len(self._tasks) < self._settings.effects.at_once

    async def _claim(self, database: Database, effect: Effect, limit: int) -> int:
        grace_s = self._settings.effects.grace_s
        lease_s = effect.timeout_s + grace_s
        # Read before the claim is asked for, so that this clock ends first.
        act_before = self._clock() + grace_s / 2
        claims = await database.run(effecting.claim(effect.name, self._holder, lease_s, limit, ask=effect.asks))
        performer = Performer(effect, database, self._clock, lease_s=lease_s)
        for claim in claims:
            task = asyncio.create_task(performer.work(claim, act_before))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return len(claims)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an effect was not settled; its lease runs out, and it is looked at again", exc_info=error)

    async def _woken_by(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping = True
        self._wake.set()
