"""The thread that owns a librdkafka consumer: it polls, commits, and lets the event loop know.

Polling never stops, whatever the handlers do, so a slow consumer is not put out of its group; what the loop has not
taken is bounded by pausing partitions. Commands come through a queue and are worked on between polls.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from relevo.brokers.kafka.options import KafkaOptions
from relevo.brokers.kafka.shard import record_size
from relevo.brokers.kafka.start import begin_at_end, committed
from relevo.clients.confluent import confluent, log, make
from relevo.errors import UnreachableError

T = TypeVar("T")
Position = tuple[str, int, int, str | None]
"""Topic, partition, the offset to go on from (below 0: none), and the mark of the topic (``identity``)."""

POLL_S: Final = 0.02
FULL_POLL_S: Final = 0.005
FULL_S: Final = 1.0
"""How long a full buffer keeps the thread from polling before it pauses the partitions."""
BATCH: Final = 1000
FAILED_S: Final = 1.0
SEEK_TIMEOUT_S: Final = 10.0


class Listener(Protocol):
    """The subscription, as the reader sees it. All methods run on the event loop, in the order of the events."""

    def assigned(self, positions: Sequence[Position]) -> None:
        """With what the group has of them."""

    async def revoked(self, partitions: Sequence[tuple[str, int]]) -> Sequence[Position]:
        """Finish there; returns how far it came."""

    def lost(self, partitions: Sequence[tuple[str, int]]) -> None: ...

    def fetched(self, records: Sequence[Any]) -> None: ...

    def committed(self, positions: Sequence[Position], error: str | None) -> None: ...

    def failed(self, topic: str | None, name: str, reason: str) -> None: ...

    def begins_anew(self, topic: str, partition: int, mark: str) -> None:
        """What is fetched from now on comes from the partition's first record, as ``read_anew`` asked for."""


class Reader:
    """The loop says what it let go of; when what was read and not let go exceeds a limit, the partitions are paused."""

    def __init__(
        self,
        options: KafkaOptions,
        group: str,
        topics: Sequence[str],
        from_start: bool,
        listener: Listener,
        revoke_timeout_s: float,
    ) -> None:
        self._read_messages = self._read_bytes = 0  # written by the thread
        self._gone_messages = self._gone_bytes = 0  # written by the loop
        self._own = options.own
        self._batch = min(BATCH, options.own.buffer_messages)
        self._from_start = from_start
        self._topics = list(topics)
        self._listener = listener
        self._revoke_timeout_s = revoke_timeout_s
        self._loop = asyncio.get_running_loop()
        self._commits: SimpleQueue[Sequence[Position]] = SimpleQueue()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stop = threading.Event()
        self._ended = asyncio.Event()
        self._paused = False
        self._revoking = False
        self._full_since: float | None = None
        self._kafka = confluent()
        config = {**options.consumer(group), "on_commit": self._on_commit, "error_cb": self._on_error}
        self._consumer = make("Consumer", config)
        self._thread = threading.Thread(target=self._run, name=f"relevo-kafka-{group}", daemon=True)

    def let_go(self, messages: int, size: int) -> None:
        """The loop does not hold these any more."""
        self._gone_messages += messages
        self._gone_bytes += size

    @property
    def held(self) -> tuple[int, int]:
        """Messages and bytes read and not let go."""
        return self._read_messages - self._gone_messages, self._read_bytes - self._gone_bytes

    def start(self) -> None:
        self._thread.start()

    async def run(self, work: Callable[[Any], T], timeout_s: float) -> T:
        """``work(consumer)`` in the thread. Raises ``UnreachableError`` for Kafka's errors and after ``timeout_s``."""
        done: Future[T] = Future()

        def command() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work(self._consumer))
            except BaseException as error:  # noqa: BLE001 - carried over to the caller
                done.set_exception(error)

        self._commands.put(command)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(done)
        except TimeoutError:
            raise UnreachableError(f"Kafka did not answer in {timeout_s:g} s") from None
        except self._kafka.KafkaException as error:
            raise UnreachableError(f"{error.args[0].name()}: {error.args[0].str()}") from error

    def commit(self, positions: Sequence[Position]) -> None:
        """Send a commit; the listener hears how it went."""
        self._commits.put(positions)

    async def read_anew(self, topic: str, partition: int, mark: str) -> None:
        """Read a partition from its first record; the listener hears from where on. Raises ``UnreachableError``."""

        def seek(consumer: Any) -> None:
            consumer.seek(self._kafka.TopicPartition(topic, partition, self._kafka.OFFSET_BEGINNING))
            self._tell(self._listener.begins_anew, topic, partition, mark)

        await self.run(seek, SEEK_TIMEOUT_S)

    async def close(self, timeout_s: float) -> bool:
        """Leave the group, after what ``revoked`` says is committed; false if that took too long."""
        self._stop.set()
        with suppress(TimeoutError):  # no join in a thread: the process would wait for that at its end
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        return self._ended.is_set()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._tell(self._ended.set)

    def _work(self) -> None:
        consumer = self._consumer
        consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - without this thread nothing is read, and the group waits for it
                log.exception("reading from Kafka failed; trying again in %.0f s", FAILED_S)
                self._tell(self._listener.failed, None, type(error).__name__, str(error))
                self._stop.wait(FAILED_S)
        consumer.close()

    def _turn(self) -> None:
        self._serve()
        if self._must_wait():
            time.sleep(FULL_POLL_S)
            return
        record = self._consumer.poll(POLL_S)
        if record is None:
            return
        batch = [record]
        try:
            batch += self._consumer.consume(self._batch, 0)
        finally:  # what the client has given once it does not give again
            self._hand_on(batch)

    def _hand_on(self, batch: Sequence[Any]) -> None:
        good = []
        for record in batch:
            error = record.error()
            if error is None:
                good.append(record)
            else:
                self._tell(self._listener.failed, record.topic(), error.name(), error.str())
        if good:
            self._read_messages += len(good)
            self._read_bytes += sum(map(record_size, good))
            self._tell(self._listener.fetched, good)

    def _serve(self) -> None:
        with suppress(Empty):
            while True:
                self._commit(self._commits.get_nowait())
        with suppress(Empty):
            while True:
                self._commands.get_nowait()()

    def _must_wait(self) -> bool:
        """Back-pressure, before each poll. Pausing throws away what was prefetched, and a resumed partition waits for
        the fetch under way, half a second and more; so for a moment the thread only stops polling. A consumer that
        stays behind is paused, and polling goes on: its group must hear from it."""
        messages, size = self.held
        if self._paused:
            if messages <= self._own.buffer_messages // 2 and size <= self._own.buffer_bytes // 2:
                self._paused = False
                self._consumer.resume(self._consumer.assignment())
            return False
        if messages < self._own.buffer_messages and size < self._own.buffer_bytes:
            self._full_since = None
            return False
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < FULL_S:
            return True
        self._paused, self._full_since = True, None
        self._consumer.pause(self._consumer.assignment())
        return False

    def _commit(self, positions: Sequence[Position]) -> None:
        """Usually without waiting: the next poll brings the answer. While partitions are revoked there is no poll."""
        try:
            self._consumer.commit(offsets=self._offsets(positions), asynchronous=not self._revoking)
        except self._kafka.KafkaException as error:
            self._tell(self._listener.committed, positions, f"{error.args[0].name()}: {error.args[0].str()}")
        else:
            if self._revoking:
                self._tell(self._listener.committed, positions, None)

    def _offsets(self, positions: Sequence[Position]) -> list[Any]:
        place = self._kafka.TopicPartition
        return [place(topic, partition, offset, mark or "") for topic, partition, offset, mark in positions]

    def _on_commit(self, error: Any, offsets: Sequence[Any]) -> None:
        positions = [(offset.topic, offset.partition, offset.offset, None) for offset in offsets]
        bad = error or next((offset.error for offset in offsets if offset.error is not None), None)
        self._tell(self._listener.committed, positions, f"{bad.name()}: {bad.str()}" if bad else None)

    def _on_assign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        if not self._from_start and partitions:
            try:
                partitions = begin_at_end(consumer, self._kafka, partitions)
            except self._kafka.KafkaException as error:
                log.warning("a new group begins at the start, since its end could not be read: %s", error.args[0].str())
        self._tell(self._listener.assigned, committed(consumer, self._kafka, partitions))
        consumer.incremental_assign(partitions)
        if self._paused:
            consumer.pause(partitions)

    def _on_revoke(self, consumer: Any, partitions: Sequence[Any]) -> None:
        """Wait for the loop to finish there. Its commits are served meanwhile, and nothing else is: a question to the
        group would not be answered before we let the partitions go."""
        self._revoking = True
        positions: Sequence[Position] = []
        ended = self._ask(self._listener.revoked(_names(partitions)))
        if ended is not None:
            waited = 0.0
            while not ended.done() and waited < self._revoke_timeout_s:
                try:
                    self._commit(self._commits.get(timeout=POLL_S))
                except Empty:
                    waited += POLL_S
            if ended.done():
                positions = ended.result()
            else:
                ended.cancel()
                log.warning("work in flight did not end in %.0f s and will be repeated", self._revoke_timeout_s)
        if positions:
            try:
                consumer.commit(offsets=self._offsets(positions), asynchronous=False)
            except self._kafka.KafkaException as error:
                log.warning("the last positions could not be committed (%s): repeated elsewhere", error.args[0].str())
        consumer.incremental_unassign(partitions)
        self._revoking = False

    def _on_lost(self, consumer: Any, partitions: Sequence[Any]) -> None:
        """Somebody else has them already: nothing to commit."""
        self._tell(self._listener.lost, _names(partitions))
        consumer.incremental_unassign(partitions)

    def _on_error(self, error: Any) -> None:
        self._tell(self._listener.failed, None, error.name(), error.str())

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _ask(self, work: Coroutine[Any, Any, T]) -> Future[T] | None:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return None


def _names(partitions: Sequence[Any]) -> list[tuple[str, int]]:
    return [(partition.topic, partition.partition) for partition in partitions]
