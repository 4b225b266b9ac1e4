"""The effects of one process: claim what is due, a few of each at once, until told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

from relevo import signals
from relevo.bounds import CLEANUP_S, answer_s
from relevo.clients import database_for
from relevo.effects.declaring import Effect
from relevo.effects.performer import Performer
from relevo.effects.recorder import Recorder
from relevo.effects.recording import CHANNEL
from relevo.errors import ConfigError
from relevo.ids import uuid7
from relevo.ports.database import Database
from relevo.runtime.clock import boottime_s
from relevo.runtime.closing import MOMENT_S, stoppable
from relevo.runtime.patience import Patience, reason_of
from relevo.runtime.pulse import Pulse
from relevo.runtime.vitals import Vital, Vitals
from relevo.settings import Settings
from relevo.storage import effecting
from relevo.storage.ready import ensure_ready
from relevo.tasks import Tasks

log = logging.getLogger("relevo.effects")

LEAVE_S: Final = 2.0
"""For acts that were cancelled, and for writing down that their outcome is unknown."""


@dataclass(frozen=True, slots=True)
class EffectsHealth:
    """``live``: the loop runs. ``ready``: effects are claimed. ``problems``: what is unavailable, by name."""

    live: bool
    ready: bool
    problems: Mapping[str, str]
    detail: Mapping[str, Any]
    ages: Mapping[str, Any] = field(default_factory=dict)


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
        self._under_way: dict[str, set[asyncio.Task[None]]] = {name: set() for name in self.effects}
        """By effect: one whose acts hang takes no slots of the others."""
        self._wake = signals.subscribe(CHANNEL)
        self._stopping = False
        self._recorder: Recorder | None = None
        self._patience = Patience("performing effects", log)
        self._patience.trouble.begin("not started")
        self._tasks_beside = Tasks("effects", log)
        self._over: str | None = None
        self.pulse = Pulse()
        """When it last looked for effects that are due."""
        limit_s = settings.consumer.lease_s + 2 * settings.effects.poll_s
        self._vitals = Vitals(self.pulse, [Vital("claim", "claim", limit_s)])
        self.began = False
        """Whether it has looked once: from then on every error is waited out."""

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None] | None = None) -> None:
        """Until ``stop`` and what is being performed has ended, its time-out at most. Outages are waited out. Raises
        ``SchemaError`` when the tables do not fit. Cancellation leaves at once: acts under way are *unknown* then."""
        database = self._given or database_for(
            self._settings.database, answer_s=answer_s(self._settings.consumer.lease_s)
        )
        self._recorder = recorder = Recorder(database)
        self._tasks_beside.keep("following a stop", partial(self._woken_by, stop), may_end=stop.is_set)
        try:
            await stoppable(
                *(self._all_turns(recorder, stop, on_ready), stop),
                begun=lambda: self.began,
                finish_s=CLEANUP_S,
                leave_s=MOMENT_S,
            )
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._stop_s())
            self._over = "it was stopped"
        except BaseException as error:
            self._over = f"it ended: {reason_of(error)}"
            if self.began and not stop.is_set():
                log.error("performing effects ended, though it was not stopped: %s", reason_of(error))
            raise
        finally:
            await self._tasks_beside.aclose()
            for _ in range(2):  # the second time, what only waits for its outcome to be written down
                for task in self._tasks:
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=LEAVE_S)
            self._wake.close()
            if self._given is None:
                await database.aclose()

    def _stop_s(self) -> float:
        """How long what is performed may take after a stop: an act that outlasts its time-out is *unknown* then."""
        return max(effect.timeout_s for effect in self.effects.values()) + LEAVE_S

    @property
    def problem(self) -> str | None:
        """Why nothing is performed, and since when."""
        return self._patience.trouble.text

    def health(self) -> EffectsHealth:
        """From memory, at once."""
        problems = dict(self._tasks_beside.problems)
        if self.problem is not None:
            problems["database"] = self.problem
        if self._recorder is not None and self._recorder.problem is not None:
            problems["recording"] = self._recorder.problem
        if self._over is not None:
            problems["effects"] = self._over
        detail = {
            "effects": sorted(self.effects),
            "under_way": len(self._tasks),
            "under_way_by_effect": {name: len(tasks) for name, tasks in self._under_way.items() if tasks},
            "stopping": self._stopping,
        }
        if "database" not in problems:
            problems |= {f"success of {name}": why for name, why in self._vitals.problems().items()}
        live = self._over is None and self._tasks_beside.live
        return EffectsHealth(
            live=live,
            ready=not problems and not self._stopping,
            problems=problems,
            detail={"performing": detail},
            ages=self._vitals.ages(),
        )

    async def _all_turns(self, recorder: Recorder, stop: asyncio.Event, on_ready: Callable[[], None] | None) -> None:
        while not await self._turns(recorder, stop, on_ready):
            pass

    async def _turns(self, recorder: Recorder, stop: asyncio.Event, on_ready: Callable[[], None] | None) -> bool:
        """Until ``stop``, or an error, which is waited out: then false. Mistakes found at the start are raised."""
        try:
            if not self.began:
                self.pulse.begin("claim")
                await ensure_ready(recorder.database, self._settings)
            while not stop.is_set():
                busy = await self._turn(recorder)
                self._patience.worked()
                self._patience.trouble.end()
                self.pulse.beat("claim")
                if not self.began:
                    self.began = True
                    if on_ready is not None:
                        on_ready()
                if not busy:
                    await self._wake.wait(self._settings.effects.poll_s)
            return True
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or stop.is_set():
                raise
            delay_s = self._patience.failed(RuntimeError("something it waited for was cancelled by other code"))
        except Exception as error:
            if not self.began and self._patience.ends(error):
                raise
            delay_s = self._patience.failed(error)
        if not stop.is_set():
            await self._wake.wait(delay_s)
        return stop.is_set()

    async def _turn(self, recorder: Recorder) -> bool:
        """Claim what is due. Whether to look again at once."""
        for name, key in await recorder.database.run(effecting.expire(list(self.effects))):
            log.warning("effect %s/%s: its performer was lost; the outcome is unknown", name, key)
        again = due = False
        for effect in self.effects.values():
            under_way = self._under_way[effect.name]
            free = self._settings.effects.at_once - len(under_way)
            if recorder.begin_in_s():
                due = True
            elif free > 0:
                claimed = await self._claim(recorder, effect, free)
                again, due = again or 0 < claimed < free, due or claimed > 0
        if not due and not self._tasks:
            recorder.nothing_begins()
        return again

    async def _claim(self, recorder: Recorder, effect: Effect, limit: int) -> int:
        grace_s = self._settings.effects.grace_s
        lease_s = effect.timeout_s + grace_s
        # Read before the claim is asked for, so that this clock ends first.
        act_before = self._clock() + grace_s / 2
        claim_some = effecting.claim(effect.name, self._holder, lease_s, limit, ask=effect.asks)
        claims = await recorder.database.run(claim_some)
        performer = Performer(effect, recorder, self._clock, lease_s=lease_s)
        for claim in claims:
            task = asyncio.create_task(performer.work(claim, act_before))
            self._tasks.add(task)
            self._under_way[effect.name].add(task)
            task.add_done_callback(partial(self._ended, effect.name))
        return len(claims)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._under_way[name].discard(task)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an effect was not settled; its lease runs out, and it is looked at again", exc_info=error)

    async def _woken_by(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping = True
        self._wake.set()
