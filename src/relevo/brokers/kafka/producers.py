"""The producers of one publisher: which of them works, when another takes over, and how one ends.

librdkafka takes its linger when a producer is made. So there may be two of them: a prompt one for a relay that follows,
and a patient one for a backlog, where waiting for company keeps nobody waiting and fuller batches cost the broker less.
One works while the other rests. The other takes over when everything that was handed to the first is accounted for, so
what one producer keeps (the order of a key, nothing behind a refusal) is kept by both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from relevo.brokers.kafka.admin import Topic
from relevo.brokers.kafka.failures import Failure
from relevo.brokers.kafka.options import KafkaOptions
from relevo.brokers.kafka.sender import Call, Kind, Sender
from relevo.brokers.refusals import Refusals
from relevo.outcome import PublishOutcome, Unavailable, Unconfirmed

log = logging.getLogger("relevo.brokers.kafka")

ACCOUNT_TIMEOUT_S: Final = 10.0
"""For the reports of what was taken back; they need no broker."""
BATCH_BYTES: Final = 500_000
"""Below half of Kafka's default limit, so that a batch is never too large when its messages are not."""
CLOSED: Final = Unconfirmed("the publisher was closed before a confirmation came")
BACKLOG: Final = 1_000
"""Messages under way that make a backlog: the next are handed to the patient producer …"""
FOLLOWING: Final = 500
"""… and those that, with the next, are fewer than so many make none any more. Between the two nothing changes, so that
a rate at the border does not change producers, and wait for one to run empty, with every call."""


class Producers:
    """Of one publisher, on its event loop. ``calls``: those under way, the publisher's own."""

    def __init__(self, options: KafkaOptions, calls: Mapping[int, Call], refusals: Refusals) -> None:
        self._options = options
        self._calls = calls
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._batch_bytes = BATCH_BYTES
        self._working: Sender | None = None
        self._resting: Sender | None = None
        self._replacing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def ready(self, topics: Mapping[str, Topic], messages: int, *, one_by_one: bool) -> Sender | None:
        """One that works, for a call of so many ``messages``, and whose batches fit ``topics``. Nothing runs between
        its last look and the caller. ``None``: they were all ended while this call waited for its turn."""
        patient = not one_by_one and self._in_a_backlog(messages)
        while not self._closed:
            if self._replacing:
                await asyncio.wait(self._replacing)
            limits = (topic.limit_bytes for topic in topics.values() if topic.refused is None)
            self._batch_bytes = max(min(self._batch_bytes, min(limits, default=BATCH_BYTES * 2) // 2), 1)
            kind = Kind(self._batch_bytes, one_by_one, patient)
            if self._working is None:
                self._working = await self._made(kind)
                if self._closed:
                    self.give_up(self._working, CLOSED)
            elif self._working.kind != kind:
                await self._change(self._working, kind)
            if self._working is not None and not self._replacing:
                return self._working
        if self._replacing:
            await asyncio.wait(self._replacing)
        return None

    def give_up(self, sender: Sender, outcome: PublishOutcome, oldest: Call | None = None) -> None:
        """Take back what ``sender`` has, which gets ``outcome`` where it was not sent, and put another in its place.
        ``oldest``: the call that had no answer, if that is the reason."""
        if sender.broken is not None:
            return
        sender.broken = outcome
        task = asyncio.create_task(self._replace(sender, oldest))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def aclose(self) -> None:
        """Take back what is not confirmed, and end them all."""
        self._closed = True
        if self._replacing:
            await asyncio.wait(self._replacing)  # it may be making a successor
        for sender in (self._working, self._resting):
            if sender is not None:
                self.give_up(sender, CLOSED)
        if self._replacing:
            await asyncio.wait(self._replacing)

    def _in_a_backlog(self, messages: int) -> bool:
        if not self._options.lingers_adaptively:
            return False
        under_way = sum(len(call.messages) for call in self._calls.values())
        if under_way >= BACKLOG:
            return True
        return under_way + messages >= FOLLOWING and self._working is not None and self._working.kind.patient

    async def _made(self, kind: Kind) -> Sender:
        replaced = self._loop.create_future()
        return await asyncio.to_thread(Sender, self._options, kind, self._failed, self._fatal, replaced)

    async def _change(self, last: Sender, kind: Kind) -> None:
        """Let who works finish. It rests then, if it is of use later; if one broke meanwhile, nothing changes here."""
        calls = [call.done for call in self._calls.values()]
        if calls:
            await asyncio.wait(calls)
        if self._replacing or self._working is not last:
            return
        both = [last] if self._resting is None else [last, self._resting]
        self._working = next((sender for sender in both if sender.kind == kind), None)
        self._resting = next((sender for sender in both if sender.kind == kind.other), None)
        for sender in both:
            if sender is not self._working and sender is not self._resting:
                sender.broken = Unconfirmed("this producer was put away")  # its last words change nothing
                await asyncio.to_thread(sender.close)

    def _failed(self, call: Call, failure: Failure) -> None:
        """In the producer's thread: a message was not delivered. Close its key at once; tidy up on the loop."""
        if failure.key is not None:
            self._refusals.refuse(call.number, (failure.topic, failure.key))
        if call.sender.broken is None:
            outcome = Unconfirmed(
                f"taken back, since the broker refused another message ({failure.name}: {failure.text})"
            )
            self._give_up_from_thread(call.sender, outcome)

    def _fatal(self, sender: Sender, reason: str) -> None:
        """In the producer's thread."""
        if sender.broken is None:
            log.info("the producer cannot go on and is replaced; what is not confirmed is sent again (%s)", reason)
        self._give_up_from_thread(sender, Unconfirmed(f"taken back, since the producer failed ({reason})"))

    def _give_up_from_thread(self, sender: Sender, outcome: PublishOutcome) -> None:
        try:
            self._loop.call_soon_threadsafe(self.give_up, sender, outcome)
        except RuntimeError:
            pass  # the loop is closed

    async def _replace(self, sender: Sender, oldest: Call | None) -> None:
        """Take everything back and wait until each message is accounted for: afterwards none of them can still be
        sent by this producer."""
        try:
            sender.purge()
            await self._accounted([call for call in self._calls.values() if call.sender is sender])
            if oldest is not None:
                sender.stuck_topics = {failure.topic for failure in oldest.failed}
            await asyncio.to_thread(sender.close)
        finally:
            if self._working is sender:
                self._working = None
            if self._resting is sender:
                self._resting = None
            sender.replaced.set_result(None)
        if isinstance(sender.broken, Unavailable) and self._working is None and not self._closed:
            # In an outage the successor is there before it is needed: a broker that has just come back keeps whoever
            # asks for a producer id waiting for a second.
            self._working = await self._made(sender.kind)

    async def _accounted(self, calls: Collection[Call]) -> None:
        if calls:
            _, silent = await asyncio.wait([call.done for call in calls], timeout=ACCOUNT_TIMEOUT_S)
            if silent:
                log.error("the Kafka client did not account for all messages; they count as unconfirmed")
        for call in calls:
            if not call.done.done():
                call.silent = True
                call.done.set_result(None)
