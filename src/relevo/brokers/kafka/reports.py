"""What failed delivery reports mean, once every message of the producer is accounted for."""

from __future__ import annotations

from dataclasses import dataclass

from relevo import wire
from relevo.brokers.kafka.admin import Topic, Topics
from relevo.brokers.kafka.outcomes import OF_THE_TOPIC, classify
from relevo.brokers.kafka.sender import Sender
from relevo.brokers.kafka.sizes import record_bytes
from relevo.brokers.kafka.suspects import Suspects
from relevo.brokers.refusals import BEHIND
from relevo.outcome import PublishOutcome, Rejected, Unavailable, Unconfirmed
from relevo.outgoing import Sendable


@dataclass(frozen=True, slots=True)
class Reports:
    """Reads the reports of one publisher; ``suspects`` learns which messages must be sent alone."""

    topics: Topics
    suspects: Suspects
    source: bytes

    async def outcome(self, sender: Sender, message: Sendable, name: str, reason: str) -> PublishOutcome:
        """The outcome of ``message``, whose report carried the error ``name``."""
        broken = sender.broken or BEHIND
        if name == "_PURGE_QUEUE":
            stuck = sender.stuck_topics is None or message.topic in sender.stuck_topics
            return broken if stuck else Unconfirmed("taken back, since another topic does not answer")
        if name in ("_PURGE_INFLIGHT", "_FATAL", "_GAPLESS_GUARANTEE"):
            why = broken.reason if isinstance(broken, Unavailable | Unconfirmed) else reason
            return Unconfirmed(f"sent, and not confirmed: {why}" if name == "_PURGE_INFLIGHT" else why)
        outcome = classify(name, reason)
        if not isinstance(outcome, Rejected) or outcome.code in OF_THE_TOPIC:
            return outcome
        if outcome.code == "message_too_large":  # the limit was lowered since we asked, or could not be read
            self.topics.forget(message.topic)
            known = (await self.topics.get([message.topic]))[message.topic]
            size = record_bytes(message, wire.encode(message, self.source))
            if size > known.limit_bytes:
                return too_large(size, known)
        if sender.kind.one_by_one:
            return outcome
        self.suspects.add(message)
        return Unconfirmed(f"the broker refused a batch it was in ({name}); sent again, alone")


def too_large(size: int, topic: Topic) -> Rejected:
    """The message takes ``size`` bytes as a record, more than ``topic`` takes."""
    return Rejected(
        "message_too_large",
        f"the message takes {size:,} bytes with its headers; the topic's max.message.bytes is {topic.limit_bytes:,}",
    )
