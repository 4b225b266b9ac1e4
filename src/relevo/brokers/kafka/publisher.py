"""Publishing to Kafka: pipelined, idempotent, and prefix-safe.

An idempotent producer does not stop behind a refused message by itself: with three of a key in flight and the first too
large, the others are delivered. So size and topic are checked before ``produce``; no local time-out ever fires; where
the broker does not know the producer yet, a key's first message goes ahead (``first_contact``); and when the broker
refuses a message all the same, it refuses what is on its way behind it, the client's gapless mode fails the rest, the
producer is emptied, and a new one takes over once every message is accounted for (``producers``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from relevo import wire
from relevo.brokers.kafka import CAPABILITIES
from relevo.brokers.kafka.admin import Topic, Topics
from relevo.brokers.kafka.options import KafkaOptions
from relevo.brokers.kafka.outcomes import classify
from relevo.brokers.kafka.producers import CLOSED, Producers
from relevo.brokers.kafka.reports import Reports, too_large
from relevo.brokers.kafka.sender import Call, Sender
from relevo.brokers.kafka.sizes import record_bytes
from relevo.brokers.kafka.suspects import Suspects
from relevo.brokers.refusals import BEHIND, Refusals
from relevo.clients.confluent import confluent
from relevo.errors import MisuseError
from relevo.outcome import Accepted, PublishOutcome, Rejected, Unavailable, Unconfirmed
from relevo.outgoing import Sendable
from relevo.tasks import read

log = logging.getLogger("relevo.brokers.kafka")

CHUNK: Final = 250
"""Messages handed to the client before other tasks of the loop get a turn."""
FULL_PAUSE_S: Final = 0.002


class KafkaPublisher:
    """The ``Publisher`` port."""

    capabilities = CAPABILITIES

    def __init__(self, options: KafkaOptions, source: str, send_timeout_s: float) -> None:
        self._options = options
        self._send_timeout_s = send_timeout_s
        self._source = source.encode()
        self._small_bytes = 2_000 + len(self._source)
        self._topics = Topics(options)
        self._refusals = Refusals()
        self._turn = asyncio.Lock()  # fair: calls are handed to the client in the order they came
        self._suspects = Suspects()
        self._reports = Reports(self._topics, self._suspects, self._source)
        self._calls: dict[int, Call] = {}
        self._producers = Producers(options, self._calls, self._refusals)
        self._under_way: set[asyncio.Task[dict[int, PublishOutcome]]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False

    async def publish(self, messages: Sequence[Sendable]) -> Mapping[int, PublishOutcome]:
        if self._closed:
            raise MisuseError("this publisher is closed")
        number = self._refusals.begin()
        # A task of its own: once handed over, a call is finished in order, even if this caller is cancelled.
        work = asyncio.create_task(self._publish(number, list(messages)))
        self._under_way.add(work)
        work.add_done_callback(self._ended)
        return await self._refusals.told(number, work)

    async def probe(self, topic: str) -> PublishOutcome:
        found = await self._topics.ask(topic)
        if not isinstance(found.refused, Unavailable):
            self._topics.learn(topic, found)
        return found.refused or Accepted()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._send_timeout_s)
        if self._watcher is not None:
            self._watcher.cancel()
        await self._producers.aclose()

    def _ended(self, work: asyncio.Task[dict[int, PublishOutcome]]) -> None:
        self._under_way.discard(work)
        if not work.cancelled():
            work.exception()  # looked at, also when the caller was cancelled

    async def _publish(self, number: int, messages: list[Sendable]) -> dict[int, PublishOutcome]:
        async with self._turn:
            topics = await self._topics.get({message.topic for message in messages})
            sender = await self._producers.ready(topics, len(messages), one_by_one=self._suspects.some)
            if sender is None:
                return dict.fromkeys(range(len(messages)), CLOSED)
            call = self._calls[number] = Call(number, messages, sender)
            if self._watcher is None or self._watcher.done():
                self._watcher = asyncio.create_task(self._watch())
                read(self._watcher, log, "watching what is with Kafka")
            sent = 0
            rest: Sequence[int] = range(len(messages))
            try:
                if first := sender.first_contact.first(messages, topics):
                    sent = await self._produce(call, topics, first, call.report_first)
                    await call.reports(sent)
                    sender.first_contact.conclude(topics)
                    rest = sorted({*rest}.difference(first))
                for start in range(0, len(rest), CHUNK):
                    sent += await self._produce(call, topics, rest[start : start + CHUNK], call.report)
                    if start + CHUNK < len(rest):
                        await asyncio.sleep(0)
            finally:
                call.sent_all(sent)
        await call.done
        del self._calls[number]
        if call.failed or call.silent:
            await self._explain(call)
        if self._suspects.some:
            self._suspects.cleared(messages, call.outcomes)
        return call.outcomes

    async def _produce(
        self, call: Call, topics: Mapping[str, Topic], indices: Sequence[int], report: Callable[[Any, Any], None]
    ) -> int:
        """Hand these messages to the client; how many it took. The rest has its outcome."""
        sender, messages, refusals = call.sender, call.messages, self._refusals
        produce, encode, source, small = sender.producer.produce, wire.encode, self._source, self._small_bytes
        sent = 0
        for index in indices:
            message = messages[index]
            topic, key, payload = message.topic, message.key, message.payload
            if key is not None and refusals.some and refusals.closed(call.number, (topic, key)):
                self._not_sent(call, index, BEHIND)
                continue
            known = topics[topic]
            if known.refused is not None:
                self._not_sent(call, index, known.refused)
                continue
            headers = encode(message, source)
            size = len(payload or b"") + len(key or b"")
            if size + small > known.limit_bytes or len(headers) > wire.BOUNDED:
                size = record_bytes(message, headers)
                if size > known.limit_bytes:
                    self._not_sent(call, index, too_large(size, known))
                    continue
            while sender.broken is None:
                try:
                    produce(topic, payload, key, on_delivery=report, headers=headers)
                except BufferError:
                    await asyncio.sleep(FULL_PAUSE_S)  # ends when there is room, or when the watcher gives up
                except confluent().KafkaException as error:
                    self._not_sent(call, index, self._refused_locally(sender, error))
                    break
                except (TypeError, ValueError) as error:  # a row that was written by hand
                    self._not_sent(call, index, Rejected("cannot_be_encoded", str(error)))
                    break
                else:
                    sent += 1
                    break
            else:
                self._not_sent(call, index, sender.broken)
        return sent

    def _not_sent(self, call: Call, index: int, outcome: PublishOutcome) -> None:
        call.outcomes[index] = outcome
        message = call.messages[index]
        if message.key is not None:
            self._refusals.refuse(call.number, (message.topic, message.key))

    def _refused_locally(self, sender: Sender, error: Exception) -> PublishOutcome:
        name, reason = str(error.args[0].name()), str(error.args[0].str())
        if error.args[0].fatal() or name == "_FATAL":
            outcome = Unconfirmed(f"not sent: the producer failed ({name}: {reason}) and is replaced")
            self._producers.give_up(sender, outcome)
            return sender.broken or BEHIND
        return classify(name, reason)

    async def _watch(self) -> None:
        """Give up when the oldest call has had no report for ``send_timeout_s``. Ends when no call is under way."""
        timeout_s = self._send_timeout_s
        now = asyncio.get_running_loop().time
        seen: tuple[int, int] | None = None
        since = now()
        while self._calls:
            oldest = next(iter(self._calls.values()))
            if seen != (oldest.number, oldest.reported):
                seen, since = (oldest.number, oldest.reported), now()
            elif now() - since >= timeout_s and oldest.sender.broken is None:
                why = f" ({oldest.sender.last_error})" if oldest.sender.last_error else ""
                log.warning(
                    "no confirmation for %.1f s%s: taking back what is not confirmed; the relay probes and sends again",
                    *(timeout_s, why),
                )
                oldest.sender.stuck_topics = set()
                self._producers.give_up(oldest.sender, Unavailable(f"no confirmation for {timeout_s:g} s{why}"), oldest)
            await asyncio.sleep(min(timeout_s / 10, 0.25))

    async def _explain(self, call: Call) -> None:
        sender = call.sender
        await asyncio.shield(sender.replaced)  # a failed report always leads there
        for index, failure in call.failures():
            call.outcomes[index] = await self._reports.outcome(sender, call.messages[index], failure.name, failure.text)
