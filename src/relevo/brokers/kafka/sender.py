"""One librdkafka producer with the thread that serves its delivery reports, from its making to its replacement."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from relevo.brokers.kafka.failures import Failure, locate
from relevo.brokers.kafka.first_contact import FirstContact
from relevo.brokers.kafka.options import KafkaOptions
from relevo.clients.confluent import confluent, log, make
from relevo.outcome import PublishOutcome
from relevo.outgoing import Sendable

POLL_S: Final = 0.1


class Kind(NamedTuple):
    """What a producer is made for, and cannot change."""

    batch_bytes: int
    one_by_one: bool
    """One message in a batch, so that a refusal is meant for that message."""
    patient: bool
    """Waits a little for more messages of a partition before it sends."""

    @property
    def other(self) -> Kind:
        """The same, but for its patience."""
        return self._replace(patient=not self.patient)


class Call:
    """The delivery reports of one ``publish``. ``report`` runs in the sender's thread, the rest on the loop.

    The two sides write different counters, so neither needs a lock: the last report and ``sent_all`` each look whether
    the other is through.
    """

    __slots__ = (
        "_confirmed",
        "_expected",
        "_loop",
        "done",
        "failed",
        "messages",
        "number",
        "outcomes",
        "reported",
        "sender",
        "silent",
    )

    def __init__(self, number: int, messages: list[Sendable], sender: Sender) -> None:
        self.number = number
        self.messages = messages
        self.sender = sender
        self.outcomes: dict[int, PublishOutcome] = {}
        self.failed: list[Failure] = []
        """In the order reported."""
        self.silent = False
        """Given up on: what was handed over and not reported counts as failed."""
        self.reported = 0
        self._expected = -1
        self._loop = asyncio.get_running_loop()
        self._confirmed: asyncio.Future[None] | None = None
        self.done: asyncio.Future[None] = self._loop.create_future()

    def report(self, error: Any, message: Any) -> None:
        """A delivery report, in the sender's thread."""
        if error is not None:
            failure = Failure(message.topic(), message.key(), message.value(), error.name(), error.str())
            self.failed.append(failure)
            self.sender.failed(self, failure)
        self.reported += 1
        if self.reported == self._expected:
            _tell(self._loop, self._finish, self.reported)

    def report_first(self, error: Any, message: Any) -> None:
        """The same, of a message that goes ahead of its key."""
        if error is None:
            self.sender.first_contact.met(message.topic(), message.key() or b"", message.partition())
        self.report(error, message)

    async def reports(self, count: int) -> None:
        """Wait for the reports of the first ``count`` messages; more will be handed over afterwards. Returns without
        them when this call was given up."""
        self._confirmed = self._loop.create_future()
        self._expected = count
        if self.reported < count:
            await asyncio.wait([self._confirmed, self.done], return_when=asyncio.FIRST_COMPLETED)
        self._confirmed = None
        self._expected = -1

    def sent_all(self, count: int) -> None:
        """``count`` messages were handed to the producer; no more will be."""
        self._expected = count
        if self.reported >= count:
            self._finish(count)

    def failures(self) -> list[tuple[int, Failure]]:
        """What was not delivered, by index. ``done``."""
        if not self.silent:
            return list(locate(self.messages, self.failed, frozenset(self.outcomes)))
        return [
            (index, Failure(message.topic, message.key, message.payload, "_PURGE_INFLIGHT", ""))
            for index, message in enumerate(self.messages)
            if index not in self.outcomes
        ]

    def _finish(self, count: int) -> None:
        waited_for = self._confirmed or self.done
        if count == self._expected and not waited_for.done():
            waited_for.set_result(None)


class Sender:
    """``broken`` is the outcome of what was not sent when this producer had to be given up, ``None`` while it works."""

    def __init__(
        self,
        options: KafkaOptions,
        kind: Kind,
        on_failure: Callable[[Call, Failure], None],
        on_fatal: Callable[[Sender, str], None],
        replaced: asyncio.Future[None],
    ) -> None:
        """Runs in any thread but the loop's: making a producer may take a while (certificates)."""
        self.kind = kind
        self.broken: PublishOutcome | None = None
        self.stuck_topics: set[str] | None = None
        """Of an outage: the topics whose messages did not move. Others were only taken back with them."""
        self.last_error = ""
        self.first_contact = FirstContact()
        self.failed = on_failure
        self.replaced = replaced
        """Done when, after it broke, every message is accounted for."""
        self._on_fatal = on_fatal
        config = options.producer(kind.batch_bytes, patient=kind.patient)
        if kind.one_by_one:
            config["batch.num.messages"] = 1
        self._stop = threading.Event()
        self.producer = make("Producer", {**config, "error_cb": self._error})
        self._thread = threading.Thread(target=self._poll, name="relevo-kafka-producer", daemon=True)
        self._thread.start()

    def purge(self) -> None:
        """Take back everything; each message taken back gets its delivery report."""
        self.producer.purge(in_queue=True, in_flight=True, blocking=False)

    def close(self) -> None:
        """End the thread and the producer. Blocks up to ``POLL_S`` and a little; reports that are due are lost."""
        self._stop.set()
        self._thread.join()
        self.producer = None  # the last reference: librdkafka ends its own threads here

    def _poll(self) -> None:
        producer, kafka = self.producer, confluent()
        while not self._stop.is_set():
            try:
                producer.poll(POLL_S)
            except kafka.KafkaException as error:  # a fatal error comes this way, whatever callback is set
                self._error(error.args[0])

    def _error(self, error: Any) -> None:
        self.last_error = f"{error.name()}: {error.str()}"
        if error.fatal():
            self._on_fatal(self, self.last_error)
        else:
            log.debug("producer: %s", self.last_error)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[int], None], count: int) -> None:
    try:
        loop.call_soon_threadsafe(callback, count)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more
