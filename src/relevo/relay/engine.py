"""The relay's loop: take, publish, decide, settle.

While one page is with the broker the next is read and the last is settled, each on its own connection; no transaction
is open while the broker is waited for. A page that did not go through clean ends the overlap: what was read ahead is
given back and read again, so that nothing of a key passes what was not accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from relevo.errors import UnreachableError
from relevo.outcome import PublishOutcome, Rejected
from relevo.outgoing import Sendable
from relevo.policy import PROBE_BACKOFF, Policy
from relevo.ports.broker import Publisher
from relevo.ports.database import Database
from relevo.ports.source import Disposition, Source, Taken
from relevo.relay.counters import Counters
from relevo.relay.destinations import Destinations
from relevo.relay.dispositions import KeyName, Verdict, judge
from relevo.relay.draining import Draining
from relevo.relay.ownership import Ownership
from relevo.relay.pausing import RelayPauses
from relevo.relay.sending import send
from relevo.runtime.classify import is_transient
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.probes import probe
from relevo.runtime.trouble import Trouble
from relevo.settings import RelaySettings
from relevo.signals import Wakeup
from relevo.storage import marking
from relevo.storage.pausing import Pauses

log = logging.getLogger("relevo.relay")


def key_name(message: Sendable) -> KeyName:
    return message.topic, marking.held_key(message)


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
    pauses: RelayPauses = field(default_factory=RelayPauses)
    clock: Clock = SYSTEM
    _held: set[KeyName] = field(default_factory=set)
    _assigned: int = -1
    _ahead: asyncio.Task[Taken] | None = None
    _settling: asyncio.Task[None] | None = None
    _failures: int = 0
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
        self._idle_s = self.settings.poll_min_s

    async def run(self, stop: asyncio.Event) -> None:
        try:
            while not stop.is_set():
                try:
                    await self._step(stop)
                    self._failures = 0
                    self.unreachable.end()
                except Exception as error:
                    if not is_transient(error):  # a deadlock is: whoever lost it tries again
                        raise
                    await self._step_back(error, stop)
            await self._finish()
        finally:
            await self.destinations.aclose()

    async def _step(self, stop: asyncio.Event) -> None:
        if self._assigned != self.ownership.version:
            await self._reassign()
        await self.draining.step(self._held)
        await self.destinations.tell(self.database, self.ownership.relay_id)
        taken = await self._next_page()
        if not taken:
            await self._settled()
            await self._idle(stop)
            return
        if not self.ownership.may_send(set(taken.lanes)):
            await self._abandon(taken)
            await self._pause(self.settings.poll_min_s, stop)
            return
        probe("relay.taken")
        self._idle_s = self.settings.poll_min_s
        try:
            await self._carry(taken)
        except Exception:
            await self.source.release(taken)
            raise
        if self._again_s:
            delay_s, self._again_s = self._again_s, 0.0
            await self._pause(delay_s, stop)

    async def _carry(self, taken: Taken) -> None:
        """Publish one page and settle it, or start to."""
        behind = self._behind(taken)
        kept_back = {*behind, *taken.unreadable}
        indexes = [index for index in range(len(taken)) if index not in kept_back] if kept_back else range(len(taken))
        messages = [taken.messages[index] for index in indexes] if kept_back else taken.messages
        if not taken.exhausted:
            self._read_ahead()
        probe("relay.sending")
        lanes = set(taken.lanes)
        sending = send(self.publisher, messages, lambda: self.ownership.may_send(lanes))
        outcomes: Mapping[int, PublishOutcome] = await sending
        probe("relay.confirmed")
        if kept_back:
            outcomes = {indexes[position]: outcome for position, outcome in outcomes.items()} | {
                index: Rejected("unreadable", reason)
                for index, reason in taken.unreadable.items()
                if index not in behind
            }
        self.counters.pages += 1
        verdict = judge(taken, behind, outcomes, self.policy_of, key_name)
        self.pauses.hold(verdict, behind, self._held)
        await self._settled()  # in order: this page after the last one
        if not verdict.dispositions:
            self._settling = asyncio.create_task(self._settle(taken, {}))
            return
        self._held |= verdict.held
        self._pause_destinations(verdict)
        await self._give_back_ahead()
        await self._settle(taken, verdict.dispositions)
        await self.destinations.tell(self.database, self.ownership.relay_id)

    def _behind(self, taken: Taken) -> dict[int, KeyName]:
        """Messages that may not be sent, because their key is held or an unreadable row of it stands before them."""
        paused = self.pauses.keys
        if not self._held and not taken.unreadable and not paused:
            return {}
        stopped: set[KeyName] = set()
        behind: dict[int, KeyName] = {}
        for index, message in enumerate(taken.messages):
            name = key_name(message)
            if name in self._held or name in stopped or name in paused:
                behind[index] = name
            elif index in taken.unreadable:
                stopped.add(name)
        return behind

    async def _settle(self, taken: Taken, dispositions: Mapping[int, Disposition]) -> None:
        settled = await self.source.settle(taken, dispositions)
        actions = [disposition.action for disposition in dispositions.values()]
        back = actions.count("back")
        self.counters.handed_back += back
        self.counters.held += actions.count("hold") + actions.count("behind")
        self.counters.skipped += actions.count("skip")
        self.counters.published += max(0, settled.count - (len(actions) - back))
        self._held -= set(settled.live)
        if settled.lost:
            self.ownership.lose(settled.lost)
        probe("relay.settled")

    async def _next_page(self) -> Taken:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return await ahead
        return await self._take()

    async def _take(self) -> Taken:
        return await self.source.take(
            self.settings.batch_max,
            self.settings.batch_bytes_max,
            without_topics=list(self.paused()),
        )

    def _read_ahead(self) -> None:
        self._ahead = asyncio.create_task(self._take())

    async def _settled(self) -> None:
        """Wait until the page that is being settled is."""
        settling, self._settling = self._settling, None
        if settling is not None:
            await settling

    async def _give_back_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            with contextlib.suppress(UnreachableError):
                await self.source.release(await ahead)

    async def _abandon(self, taken: Taken) -> None:
        """Give a page back unsent: our lease is too short for it, or the lanes are somebody else's."""
        await self._settled()
        await self._give_back_ahead()
        await self.source.release(taken)

    async def _reassign(self) -> None:
        """Follow a change of lanes: nothing may be in flight, then give back what others should have, then read on."""
        await self._settled()
        await self._give_back_ahead()
        await self.draining.finish(self._held)
        version = self.ownership.version
        if self.ownership.leaving:
            await self.ownership.release()
            version = self.ownership.version
        lanes = self.ownership.working()
        # After the acquisition committed, so that nothing the last owner held is missed (HARD 1).
        self._held = await self.database.run(marking.load_held(lanes, self.ownership.lane_count), read_only=True)
        await self.source.assign(lanes)
        self._assigned = version

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
        look_s = self.draining.next_s(self._held)
        await self._pause(self._idle_s if look_s is None else min(self._idle_s, look_s), stop)
        self._idle_s = min(self._idle_s * 1.5, self.settings.poll_max_s)

    async def _pause(self, delay_s: float, stop: asyncio.Event) -> None:
        """Wait for a wake-up hint, a stop or the delay, whatever comes first."""
        waking = asyncio.create_task(self.wake.wait(delay_s))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((waking, stopping), return_when=asyncio.FIRST_COMPLETED)
            if waking.done() and waking.result():
                self._idle_s = self.settings.poll_min_s
        finally:
            waking.cancel()
            stopping.cancel()

    async def _step_back(self, error: Exception, stop: asyncio.Event) -> None:
        """The database does not answer: forget what is in flight (it is taken again), wait, try again."""
        if self.unreachable.begin(str(error)):
            log.warning("%s; waiting for it, nothing is lost", error)
        self._failures += 1
        for task in (self._settling, self._ahead):
            if task is not None:
                (result,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(result, Taken):
                    await self.source.release(result)
        self._settling = self._ahead = None
        await self.draining.forget()
        self._assigned = -1
        await self._pause(PROBE_BACKOFF.delay_s(self._failures), stop)

    async def _finish(self) -> None:
        """Settle what is in flight; the lanes are given back by whoever owns the engine."""
        with contextlib.suppress(UnreachableError):
            await self._settled()
            await self._give_back_ahead()
            await self.draining.finish(self._held)

    def paused(self) -> Collection[str]:
        """Topics nothing is taken for: unavailable ones, and those a person paused."""
        return self.destinations.topics() | self.pauses.now.destinations

    def take_pauses(self, pauses: Pauses) -> None:
        """Follow what people paused or resumed: from the next page on."""
        if self.pauses.take(pauses):
            self.ownership.pause(pauses.lanes)
            self.wake.set()
