"""Pages on their way: published, judged and settled in the order they were read, several at once where that is safe.

A prefix-safe publisher may be given the next page while the last one is unconfirmed: whatever it does not accept closes
its key for what was handed over later, and the later page comes back for that key. A page that did not go through clean
ends the overlap: what was launched behind it lands, what was read ahead is given back and read again, so that nothing
of a key passes what was not accepted. What a page gives back keeps its place before all that was launched behind it: of
those pages nothing of the key is held or skipped either, whatever the broker said of it. With any other publisher one
page is under way at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from relevo.outcome import PublishOutcome, Rejected
from relevo.outgoing import Sendable
from relevo.policy import Policy
from relevo.ports.broker import Publisher
from relevo.ports.source import Disposition, Settled, Source, Taken
from relevo.relay import reporting
from relevo.relay.counters import Counters
from relevo.relay.dispositions import KeyName, Verdict, judge
from relevo.relay.ownership import Ownership
from relevo.relay.pausing import RelayPauses
from relevo.relay.sending import BEHIND, send
from relevo.relay.settling import Settling
from relevo.runtime.probes import probe
from relevo.runtime.pulse import Pulse
from relevo.storage import marking

PAGES = 4
"""Under way at once. One page in four stands with the broker, one is being written, the others wait: with fewer the
broker or the relay waits for the other (benchmarks/drain.py)."""

Outcomes = Mapping[int, PublishOutcome]


def key_name(message: Sendable) -> KeyName:
    return message.topic, marking.held_key(message)


@dataclass(slots=True)
class Page:
    """``behind``: what is not sent, as its key is held. ``indexes``: of the messages that are, if not all of them."""

    taken: Taken
    behind: Mapping[int, KeyName]
    indexes: Sequence[int] | None
    publishing: asyncio.Task[Outcomes]
    aside: Collection[int] = ()
    """Indexes of ``behind`` that the source cannot leave for later: they are held."""

    @property
    def alone(self) -> bool:
        """Nothing may be launched behind it before it landed: the publisher does not know that it stops a key."""
        return bool(self.taken.unreadable or self.aside)


@dataclass
class Flight:
    """``held``: keys that are held. Whoever lets a key out of it lands everything first: a page under way may hold back
    messages of the key, which only its landing gives back. ``on_unclean`` is told what a page that did not go through
    clean means for destinations, before it is settled. For one task; errors of the database come through, and leave the
    pages under way to ``forget``."""

    source: Source
    publisher: Publisher
    ownership: Ownership
    pauses: RelayPauses
    policy_of: Callable[[str], Policy]
    counters: Counters
    take: Callable[[], Awaitable[Taken]]
    on_unclean: Callable[[Verdict], None]
    paused: Callable[[], Collection[str]] = tuple
    """Topics nothing is sent to now."""
    held: set[KeyName] = field(default_factory=set)
    pulse: Pulse = field(default_factory=Pulse)
    reading: Mapping[int, int] = field(default_factory=dict)
    """The lanes that pages come from, with the epochs they were assigned at."""
    _back: set[KeyName] = field(default_factory=set)
    """Keys of which a page gave something back that the pages still under way were launched behind."""
    _pages: deque[Page] = field(default_factory=deque)
    _ahead: asyncio.Task[Taken] | None = None

    def __post_init__(self) -> None:
        self._pages_max = PAGES if self.publisher.capabilities.prefix_safe else 1
        self._settling = Settling(self.source, self._published)

    def __bool__(self) -> bool:
        """Whether anything is with the broker."""
        return bool(self._pages)

    async def next_page(self) -> Taken:
        ahead, self._ahead = self._ahead, None
        return await (ahead if ahead is not None else self.take())

    async def carry(self, taken: Taken) -> None:
        """Launch one page, and land what has to be landed before the next can be."""
        self._launch(taken)
        if self._pages[-1].alone:
            await self.land_all()
        while len(self._pages) >= self._pages_max:
            await self._land()

    def next_event(self) -> asyncio.Task[Outcomes] | asyncio.Task[None] | None:
        """What ends next of all that is under way, and asks for ``land_ended`` then."""
        return self._pages[0].publishing if self._pages else self._settling.task

    async def land_ended(self) -> None:
        """Land what the broker has answered, in order."""
        while self._pages and self._pages[0].publishing.done():
            await self._land()
        await self._settling.ended()

    async def land_all(self) -> None:
        """Until nothing is with the broker; the last pages may still be being settled."""
        while self._pages:
            await self._land()

    async def settled(self) -> None:
        """Wait until all that landed clean is settled."""
        await self._settling.all()

    async def give_back_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            (result,) = await asyncio.gather(ahead, return_exceptions=True)  # what failed will fail again, or not
            if isinstance(result, Taken):
                await self.source.release(result)

    async def at_rest(self) -> None:
        """Everything landed and settled, nothing read ahead."""
        await self.land_all()
        await self.settled()
        await self.give_back_ahead()

    async def forget(self) -> None:
        """After an error: wait for what is under way, and let the source read it again."""
        await self._settling.forget()
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            (result,) = await asyncio.gather(ahead, return_exceptions=True)
            if isinstance(result, Taken):
                await self.source.release(result)
        while self._pages:
            await asyncio.gather(self._pages[0].publishing, return_exceptions=True)
            await self.source.release(self._pages.popleft().taken)

    def cancel(self) -> None:
        """The caller is being cancelled: wait for nothing more."""
        self._settling.cancel()
        for task in (self._ahead, *(page.publishing for page in self._pages)):
            if task is not None:
                task.cancel()

    def _launch(self, taken: Taken) -> None:
        if not self._pages:
            self._back.clear()
        aside = self._aside(taken)
        behind = self._behind(taken, aside)
        kept_back = {*behind, *taken.unreadable}
        indexes = [index for index in range(len(taken)) if index not in kept_back] if kept_back else None
        messages = taken.messages if indexes is None else [taken.messages[index] for index in indexes]
        if not taken.exhausted and not taken.unreadable and not aside:
            self._ahead = asyncio.ensure_future(self.take())
        if messages:
            self.pulse.begin("publish")
        probe("relay.sending")
        earlier = [page.publishing for page in self._pages]
        sending = asyncio.create_task(self._send(messages, set(taken.lanes), earlier))
        self._pages.append(Page(taken, behind, indexes, sending, aside))

    async def _send(
        self, messages: Sequence[Sendable], lanes: Collection[int], earlier: Sequence[asyncio.Task[Outcomes]]
    ) -> Outcomes:
        """Publish one page, unless an earlier one came back unclean that has not landed yet: the publisher takes who
        calls now for somebody who knows. Between this look and the publisher's own nothing else can run."""
        if any(task.done() and (task.cancelled() or task.exception() or task.result()) for task in earlier):
            return dict.fromkeys(range(len(messages)), BEHIND)
        return await send(self.publisher, messages, lambda: self.ownership.may_send(lanes))

    async def _land(self) -> None:
        """Wait for the oldest page's outcomes, and settle it or start to."""
        page = self._pages[0]
        outcomes: Outcomes = await page.publishing
        probe("relay.confirmed")
        taken, behind = page.taken, page.behind
        if len(outcomes) < len(taken) - len(behind):
            self.pulse.beat("publish")
        if page.indexes is not None:
            outcomes = {page.indexes[position]: outcome for position, outcome in outcomes.items()} | {
                index: Rejected("unreadable", reason)
                for index, reason in taken.unreadable.items()
                if index not in behind
            }
        self.counters.pages += 1
        if self._back:
            outcomes = {
                index: BEHIND if key_name(taken.messages[index]) in self._back else outcome
                for index, outcome in outcomes.items()
            }
        verdict = judge(taken, behind, outcomes, self.policy_of, key_name)
        self.pauses.hold(verdict, behind, self.held | self._back if self._back else self.held, page.aside)
        if not verdict.dispositions:
            await self._settling.room_for(len(taken))
            self._pages.popleft()
            self.pulse.begin("settle")
            await self._settling.add(taken)
            return
        await self.settled()  # in order: this page after those before it
        self.held |= verdict.held
        self._back |= {
            key_name(taken.messages[index]) for index, fate in verdict.dispositions.items() if fate.action == "back"
        }
        self.on_unclean(verdict)
        await self.give_back_ahead()
        self._pages.popleft()
        await self._settle(taken, verdict.dispositions)
        await self.land_all()

    def _aside(self, taken: Taken) -> Collection[int]:
        """Of a source that cannot leave anything for later, what may not be sent now: its topic or lane is paused."""
        if self.source.capabilities.leaves:
            return ()
        topics, lanes = self.paused(), self.ownership.paused
        if not topics and not lanes:
            return ()
        return {
            index
            for index, message in enumerate(taken.messages)
            if message.topic in topics or taken.lanes[index] in lanes
        }

    def _behind(self, taken: Taken, aside: Collection[int] = ()) -> dict[int, KeyName]:
        """Messages that may not be sent, because their key is held or an unreadable row of it stands before them."""
        paused = self.pauses.keys
        if not self.held and not taken.unreadable and not paused and not aside:
            return {}
        stopped: set[KeyName] = set()
        behind: dict[int, KeyName] = {}
        for index, message in enumerate(taken.messages):
            name = key_name(message)
            if name in self.held or name in stopped or name in paused or index in aside:
                behind[index] = name
            elif index in taken.unreadable:
                stopped.add(name)
        return behind

    def _published(self, settled: Settled) -> None:
        self.counters.published += settled.count
        self._settled(settled)

    async def _settle(self, taken: Taken, dispositions: Mapping[int, Disposition]) -> None:
        self.pulse.begin("settle")
        try:
            settled = await self.source.settle(taken, dispositions)
        except Exception:
            await self.source.release(taken)
            raise
        reporting.settled(taken.messages, dispositions)
        actions = [disposition.action for disposition in dispositions.values()]
        back = actions.count("back")
        self.counters.handed_back += back
        self.counters.held += actions.count("hold") + actions.count("behind")
        self.counters.skipped += actions.count("skip")
        self.counters.published += max(0, settled.count - (len(actions) - back))
        self.held -= set(settled.live)
        self._back |= set(settled.live)
        self._settled(settled)

    def _settled(self, settled: Settled) -> None:
        if settled.lost:  # but for those that were won again meanwhile: they are ours, at another epoch
            ours = self.ownership.lanes
            self.ownership.lose([lane for lane in settled.lost if ours.get(lane) == self.reading.get(lane)])
        self.pulse.beat("settle")
        probe("relay.settled")
