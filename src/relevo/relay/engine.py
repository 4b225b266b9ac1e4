"""The relay's loop: take, publish, decide, settle.

While pages are with the broker the next is read and the last is settled, each on its own connection; no transaction is
open while the broker is waited for. ``flight`` keeps the pages; this loop decides what is read and when, follows a
change of lanes, of pauses and of what is held, and waits where there is nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from relevo.policy import Policy
from relevo.ports.broker import Publisher
from relevo.ports.database import Database
from relevo.ports.source import Source, Taken
from relevo.relay.counters import Counters
from relevo.relay.destinations import Destinations
from relevo.relay.dispositions import Verdict
from relevo.relay.draining import Draining
from relevo.relay.flight import Flight
from relevo.relay.ownership import Ownership
from relevo.relay.pausing import RelayPauses
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.patience import Patience, is_mistake, reason_of
from relevo.runtime.probes import probe
from relevo.runtime.pulse import Pulse
from relevo.runtime.trouble import Trouble
from relevo.settings import RelaySettings
from relevo.signals import Wakeup
from relevo.storage import marking
from relevo.storage.pausing import Pauses

log = logging.getLogger("relevo.relay")


@dataclass
class RelayEngine:
    """One relay process on one event loop. ``run`` returns after ``stop`` is set and what is in flight is settled."""

    database: Database
    source: Source
    publisher: Publisher
    ownership: Ownership
    settings: RelaySettings
    policy_of: Callable[[str], Policy]
    wake: Wakeup = field(default_factory=Wakeup)
    counters: Counters = field(default_factory=Counters)
    unreachable: Trouble = field(default_factory=Trouble)
    """Why the database cannot be worked with, while it cannot."""
    pulse: Pulse = field(default_factory=Pulse)
    """When it last took a page, and last settled one."""
    recovered: Callable[[], None] = lambda: None
    """Called when it works again."""
    began: bool = False
    """Whether a step went well: from then on every error is waited for. Before, mistakes of an operator are raised."""
    pauses: RelayPauses = field(default_factory=RelayPauses)
    clock: Clock = SYSTEM
    _assigned: int = -1
    _pauses_due: Pauses | None = None
    _again_s: float = 0.0

    def __post_init__(self) -> None:
        self.destinations = Destinations(self.publisher, self.wake.set, self.clock)
        self.draining = Draining(
            self.database,
            self.publisher,
            self.ownership,
            self.destinations,
            self.settings,
            self.policy_of,
            self.paused,
            self.wake.set,
            self.clock,
        )
        self.flight = Flight(
            self.source,
            self.publisher,
            self.ownership,
            self.pauses,
            self.policy_of,
            self.counters,
            self._take,
            self._pause_destinations,
            self.paused,
            pulse=self.pulse,
        )
        self.patience = Patience("relay", log, clock=self.clock, trouble=self.unreachable)
        self._idle_s = self.settings.poll_min_s

    async def run(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(self._stir)
        try:
            while not stop.is_set():
                try:
                    await self._step(stop)
                    self.began = True
                    if self.patience.worked():
                        self.recovered()
                except Exception as error:
                    if not self.began and is_mistake(error):
                        raise
                    await self._step_back(error, stop)
            await self._finish()
        except BaseException:
            self.flight.cancel()
            raise
        finally:
            stopping.cancel()
            await self.destinations.aclose()

    async def _step(self, stop: asyncio.Event) -> None:
        if self._again_s:
            delay_s, self._again_s = self._again_s, 0.0
            await self._pause(delay_s, stop)
        if self._assigned != self.ownership.version:
            await self._reassign()
        if self._pauses_due is not None:
            await self.flight.land_all()
            if self._pauses_due is not None:  # else newer ones were followed as soon as the last page had landed
                self._follow(self._pauses_due)
        if self.draining.due(self.flight.held):
            await self.flight.land_all()
            await self.draining.step(self.flight.held)
        await self.destinations.tell(self.database, self.ownership.relay_id)
        looked_at = self.clock.seconds()
        taken = await self.flight.next_page()
        if not taken:
            await self._idle(stop)
            return
        if self._assigned != self.ownership.version:
            await self._abandon(taken)  # a lane lost and won again meanwhile: what is held there may differ
            return
        if not self.ownership.may_send(set(taken.lanes)):
            await self._abandon(taken)
            await self._pause(self.settings.poll_min_s, stop)
            return
        probe("relay.taken")
        self._idle_s = self.settings.poll_min_s
        await self.flight.carry(taken)
        if taken.exhausted:
            company_s = self.source.capabilities.company_s
            since_s = self.clock.seconds() - looked_at
            await self._rest(self.settings.poll_min_s - since_s, stop, least_s=company_s - since_s)
        await self.destinations.tell(self.database, self.ownership.relay_id)

    async def _take(self) -> Taken:
        taken = await self.source.take(
            self.settings.batch_max,
            self.settings.batch_bytes_max,
            without_topics=list(self.paused()),
        )
        self.pulse.beat("take")
        return taken

    async def _abandon(self, taken: Taken) -> None:
        """Give a page back unsent: our lease is too short for it, or the lanes are somebody else's."""
        try:
            await self.flight.at_rest()
        finally:
            await self.source.release(taken)

    async def _reassign(self) -> None:
        """Follow a change of lanes: nothing may be in flight, then give back what others should have, then read on."""
        await self.flight.at_rest()
        await self.draining.finish(self.flight.held)
        version = self.ownership.version
        if self.ownership.leaving:
            await self.ownership.release()
            version = self.ownership.version
        lanes = self.ownership.reading()
        # After the acquisition committed, so that nothing the last owner held is missed (HARD 1).
        self.flight.held = await self.database.run(marking.load_held(lanes, self.ownership.lane_count), read_only=True)
        await self.source.assign(lanes)
        await self.ownership.rested()
        self._assigned, self.flight.reading = version, lanes

    def _pause_destinations(self, verdict: Verdict) -> None:
        for topic, reason in verdict.pauses.items():
            self.destinations.pause(topic, reason)
        for topic, (reason, delay_s) in verdict.blocks.items():
            self.destinations.block(topic, reason, delay_s)
        unconfirmed = any(disposition.action == "back" for disposition in verdict.dispositions.values()) and not (
            verdict.pauses or verdict.blocks
        )
        if unconfirmed:
            self._again_s = self.settings.poll_min_s

    async def _idle(self, stop: asyncio.Event) -> None:
        """Nothing was there to be read, or nothing may be read before what is under way has landed."""
        flying = bool(self.flight)
        look_s = self.draining.next_s(self.flight.held)
        await self._rest(self._idle_s if look_s is None else min(self._idle_s, look_s), stop, until_landed=flying)
        await self.destinations.tell(self.database, self.ownership.relay_id)
        if not flying:
            if self.flight.next_event() is None:
                self.pulse.rest("publish")
                self.pulse.rest("settle")
            self._idle_s = min(self._idle_s * 1.5, self.settings.poll_max_s)

    async def _rest(
        self, delay_s: float, stop: asyncio.Event, *, least_s: float = 0.0, until_landed: bool = False
    ) -> None:
        """Land what the broker answers, until the delay is over, a hint comes (but not before ``least_s``), or somebody
        wants something done."""
        now = self.clock.seconds()
        until, earliest = now + delay_s, now + least_s
        while True:
            await self.flight.land_ended()
            left_s = until - self.clock.seconds()
            wanted = self._pauses_due is not None or self._assigned != self.ownership.version or self._again_s
            if left_s <= 0 or wanted or (until_landed and not self.flight) or stop.is_set():
                return
            if await self._pause(left_s, stop, self.flight.next_event()):
                until = min(until, earliest)

    async def _pause(self, delay_s: float, stop: asyncio.Event, landing: asyncio.Task[Any] | None = None) -> bool:
        """Wait for a hint, a stop, the end of ``landing`` or the delay, whatever comes first; whether a hint came."""
        if stop.is_set() or (landing is not None and landing.done()):
            return False
        if landing is not None:
            landing.add_done_callback(self._stir)
        try:
            woken = await self.wake.wait(delay_s)
        finally:
            if landing is not None:
                landing.remove_done_callback(self._stir)
        if woken:
            self._idle_s = self.settings.poll_min_s
        return woken

    def _stir(self, _: object) -> None:
        self.wake.stir()

    async def _step_back(self, error: Exception, stop: asyncio.Event) -> None:
        """After any error: forget what is in flight (it is taken again), wait, try again."""
        delay_s = self.patience.failed(error)
        self._assigned = -1
        await self._forget()
        await self._pause(delay_s, stop)

    async def _forget(self) -> None:
        for forget in (self.flight.forget, self.draining.forget):
            try:
                await forget()
            except Exception:
                log.exception("relay: what was in flight could not be given back; it is read again")

    async def _finish(self) -> None:
        """Settle what is in flight; the lanes are given back by whoever owns the engine. What cannot be settled now is
        sent again by the next owner."""
        try:
            await self.flight.at_rest()
            await self.draining.finish(self.flight.held)
        except Exception as error:  # noqa: BLE001 - a stop is a stop: what is not settled is sent again
            log.warning("relay: not settled at the end, so it is sent again by the next owner: %s", reason_of(error))
            await self._forget()
        try:
            await self.source.aclose()
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("relay: the last position was not stored: %s", reason_of(error))

    def paused(self) -> Collection[str]:
        """Topics nothing is taken for: unavailable ones, and those a person paused."""
        return self.destinations.topics() | self.pauses.now.destinations

    def take_pauses(self, pauses: Pauses) -> None:
        """Follow what people paused or resumed: from the next page on, and not before the pages under way landed."""
        if self.flight:
            self._pauses_due = pauses
        else:
            self._follow(pauses)

    def _follow(self, pauses: Pauses) -> None:
        self._pauses_due = None
        if self.pauses.take(pauses):
            self.ownership.pause(pauses.lanes)
            self.wake.set()
