"""Taking: deliveries from the broker into the journal and onto their keys' queues, within a bounded window."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count

from relevo.bounds import CLEANUP_S
from relevo.consumer.batches import Batches
from relevo.consumer.keys import KeyQueues
from relevo.consumer.messages import Item, Messages
from relevo.consumer.shared import Shared
from relevo.ports.broker import Delivery, KeepsPlace, Subscription
from relevo.runtime.patience import Patience
from relevo.runtime.probes import probe

log = logging.getLogger("relevo.consumer")

TAKE_S = 0.5
"""How long one ``take`` may wait: also how long a stop waits for it."""
GIVE_BACK_S = 1.0
"""How long handing back what was cut short may take. Without it nothing is lost: the messages are suspects then."""
ROOM_S = 0.02
"""How long to wait for more room in the window before taking what little fits."""


class Intake:
    """``in_flight_max``: messages taken and not settled, over all keys; ``batch_max``: most per take."""

    def __init__(
        self,
        shared: Shared,
        subscription: Subscription,
        batches: Batches | None = None,
        *,
        in_flight_max: int,
        batch_max: int,
    ) -> None:
        self._shared = shared
        self._subscription = subscription
        self._messages = Messages(shared, subscription)
        self._in_flight_max = in_flight_max
        self._batch_max = batch_max
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._batches = batches
        self._queues: KeyQueues[Item] = KeyQueues(self._work, self._failed, self._work_many, batches)
        self._items: set[Item] = set()
        self._ids: set[str] = set()
        self._given_up: set[str] = set()
        """Shards taken away since the deliveries at hand were taken: what of them is no item yet must never run, or it
        would pass what was given back."""
        self._room = asyncio.Event()
        self._alone = count()
        self._paused = False
        self._settling = 0
        self._patience = Patience(f"consumer {shared.name}: the broker gives nothing: taking", log)

    def __len__(self) -> int:
        """Messages in flight."""
        return len(self._items)

    @property
    def problem(self) -> str | None:
        """Why the broker gives nothing or keeps nothing, and since when."""
        place = self._subscription.problem if isinstance(self._subscription, KeepsPlace) else None
        return self._patience.trouble.text or place

    async def run(self) -> None:
        """Take until the engine stops. Raises only for bugs: outages are waited out."""
        while not self._shared.interrupt.stopping:
            if self._failure.done():
                self._failure.result()
            if not await self._has_room():
                continue
            deliveries = await self._take()
            if deliveries:
                probe("consumer.taken")
                await self._accept(deliveries)
            elif not self._items:
                await self._shared.journal.flush()

    async def finish(self, timeout_s: float) -> None:
        """Stop: what runs may finish, what has not begun is handed back. After ``timeout_s``, or at once when the
        database is away, the rest is cancelled and handed back too."""
        await self._withdraw(lambda item: True, GIVE_BACK_S)
        joined = asyncio.ensure_future(self._queues.join())
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while not joined.done() and loop.time() < end and self._shared.database.reason is None:
            await asyncio.wait([joined], timeout=min(0.1, max(0.0, end - loop.time())))
        joined.cancel()
        left = [item.delivery for item in self._items]
        cancelling = asyncio.ensure_future(self._queues.cancel())
        await asyncio.wait([cancelling], timeout=CLEANUP_S)
        if not cancelling.done():  # they wait for connections that do not answer
            self._shared.runs.abandon()
            await asyncio.wait([cancelling], timeout=CLEANUP_S)
        self._items.clear()
        if left:
            log.warning("consumer %s: %d messages were cut short; they come again", self._shared.name, len(left))
            try:
                async with asyncio.timeout(GIVE_BACK_S):
                    await self._give_back(left)
            except TimeoutError:
                log.warning(
                    "consumer %s: the journal could not be told; the next owner runs them alone", self._shared.name
                )

    async def revoked(self, shards: Sequence[str], timeout_s: float) -> None:
        """Shards are about to be taken away: finish what runs there, bounded; what has not begun is given back."""
        gone = set(shards)
        self._given_up |= gone
        waiting = []
        for item in self._items:
            if item.delivery.shard in gone:
                item.revoked = True
                item.done = item.done or asyncio.get_running_loop().create_future()
                waiting.append(item.done)
        await self._withdraw(lambda item: item.delivery.shard in gone, timeout_s)
        self._shared.interrupt.stir()
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        if self._shared.database.reason is None:
            await self._shared.journal.flush()
        await self._subscription.flush()

    async def _has_room(self) -> bool:
        """Whether to take now. Pauses the fetch while the window is full or the database is away."""
        if self._shared.database.reason is not None:
            self._pause()
            await self._until(self._shared.database.up())
            return False
        if self._shared.paused:
            self._pause()
            await self._shared.interrupt.sleep(TAKE_S, lambda: not self._shared.paused)
            return False
        room = self._in_flight_max - len(self._items)
        if room < min(self._batch_max, max(1, self._in_flight_max // 4)):
            self._room.clear()
            if room <= 0:
                self._pause()
                await self._until(self._room.wait())
                return False
            try:
                async with asyncio.timeout(ROOM_S):
                    await self._room.wait()
            except TimeoutError:
                pass
        self._resume()
        return True

    async def _until(self, event: object) -> None:
        """Wait for ``event``, a second at most: a stop or a bug must be seen too."""
        try:
            async with asyncio.timeout(TAKE_S):
                await event  # type: ignore[misc]
        except TimeoutError:
            pass

    async def _take(self) -> Sequence[Delivery]:
        room, pulse = self._in_flight_max - len(self._items), self._shared.pulse
        pulse.begin("poll")
        try:
            deliveries = await self._subscription.take(min(self._batch_max, max(1, room)), TAKE_S)
        except Exception as error:  # noqa: BLE001 - any error of the broker is waited out
            await self._shared.interrupt.sleep(self._patience.failed(error), lambda: False)
            return ()
        self._patience.worked()
        pulse.beat("poll")
        pulse.rest("poll")
        return deliveries

    async def _accept(self, deliveries: Sequence[Delivery]) -> None:
        shared = self._shared
        self._given_up.clear()
        ids = [str(delivery.message.event_id) for delivery in deliveries]
        shared.pulse.begin("journal")
        found = await shared.journal.taken(ids)
        shared.pulse.beat("journal")
        shared.pulse.rest("journal")
        probe("consumer.journaled")
        for delivery, id in zip(deliveries, ids, strict=True):
            message = delivery.message
            handler = shared.routes.find(message.type)
            if handler is None and delivery.malformed is None and shared.routes.skips(message.type):
                shared.journal.settled(id)
                await self._settle([delivery])
                continue
            before = found.get(message.event_id)
            if before is not None and before.suspect:
                shared.runs.reports.suspect(message, before.attempts)
            item = Item(
                delivery,
                handler,
                shared.key_of(message, handler),
                before.attempts if before else 0,
                before.suspect if before else False,
                id,
                revoked=delivery.shard in self._given_up,
                single=id in self._ids,  # no message twice in one batch
            )
            self._items.add(item)
            self._ids.add(id)
            self._queues.put(next(self._alone) if item.key.alone else (message.topic, message.key), item)

    async def _work(self, item: Item) -> None:
        try:
            settled = await self._messages.process(item)
            if settled:
                self._shared.journal.settled(item.id)
                await self._settle([item.delivery])
                probe("consumer.settled")
            else:
                await self._give_back([item.delivery])
            self._forget(item)  # not when cancelled: `finish` gives those back
        finally:
            item.over()
            self._room.set()

    async def _work_many(self, items: Sequence[Item]) -> Sequence[Item]:
        assert self._batches is not None
        over = items
        try:
            done, again = await self._batches.run(items)
            if done:
                for item in done:
                    probe("consumer.committed")
                    self._shared.journal.settled(item.id)
                await self._settle([item.delivery for item in done])
                for item in done:
                    probe("consumer.settled")
                    self._forget(item)
            over = done
            return again
        finally:
            for item in over:
                item.over()
            self._room.set()

    async def _settle(self, deliveries: Sequence[Delivery]) -> None:
        pulse = self._shared.pulse
        self._settling += 1
        pulse.begin("settle")
        try:
            await self._subscription.settle(deliveries)
            pulse.beat("settle")
        finally:
            self._settling -= 1
            if not self._settling:
                pulse.rest("settle")

    async def _withdraw(self, wanted: Callable[[Item], bool], timeout_s: float) -> None:
        """What has not begun goes back, all at once."""
        items = self._queues.withdraw(wanted)
        try:
            async with asyncio.timeout(timeout_s):
                await self._give_back([item.delivery for item in items])
        except TimeoutError:
            log.warning("consumer %s: the journal could not be told what went back", self._shared.name)
        for item in items:
            self._forget(item)
            item.over()

    def _forget(self, item: Item) -> None:
        self._items.discard(item)
        self._ids.discard(item.id)

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        owned = [delivery for delivery in deliveries if self._subscription.owns(delivery)]
        if owned:
            await self._subscription.hand_back(owned)
        if self._shared.database.reason is None:
            await self._shared.journal.hand_back([delivery.message.event_id for delivery in deliveries])

    def _failed(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
        self._room.set()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._subscription.pause()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._subscription.resume()
