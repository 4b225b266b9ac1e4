"""Scheduling by key: messages of one key one after the other, different keys side by side, or several in one batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

I = TypeVar("I")  # noqa: E741 - an item
I_contra = TypeVar("I_contra", contravariant=True)


class Grouping(Protocol[I_contra]):
    """What may go together."""

    def of(self, item: I_contra) -> Hashable | None:
        """The items of one group may share a batch; ``None``: this one runs by itself."""

    def fits(self, items: Sequence[I_contra], item: I_contra) -> bool:
        """Whether ``item``, of the same group, may be added."""

    def at_once(self, group: Hashable) -> int:
        """Batches under way at once."""


class KeyQueues(Generic[I]):
    """``work`` takes one item, ``work_many`` a batch, of which it returns what has to run again, in its order. Neither
    may raise but for cancellation; an exception goes to ``on_failure`` and stops the engine. What waits is bounded by
    whoever calls ``put``. While a key's items are under way, no other of the key begins."""

    def __init__(
        self,
        work: Callable[[I], Awaitable[None]],
        on_failure: Callable[[BaseException], None],
        work_many: Callable[[Sequence[I]], Awaitable[Sequence[I]]] | None = None,
        grouping: Grouping[I] | None = None,
    ) -> None:
        self._work = work
        self._work_many = work_many
        self._grouping = grouping
        self._on_failure = on_failure
        self._queues: dict[Hashable, deque[I]] = {}
        self._ready: dict[Hashable, None] = {}
        """Keys with items of which none is under way, not looked at yet."""
        self._waiting: dict[Hashable, deque[Hashable]] = {}
        """Such keys by the group of their first item, until there is room for another batch."""
        self._under_way: dict[Hashable, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._going = self._closed = False

    def put(self, key: Hashable, item: I) -> None:
        """Queue an item behind those of its key. It begins when the event loop is free: with what else was put."""
        self._count += 1
        self._drained.clear()
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(item)
            return
        self._queues[key] = deque([item])
        self._make_ready(key)

    def __len__(self) -> int:
        """Items queued or under way."""
        return self._count

    def withdraw(self, wanted: Callable[[I], bool]) -> list[I]:
        """Take out what has not begun."""
        out: list[I] = []
        for queue in self._queues.values():
            keep = [item for item in queue if not wanted(item)]
            if len(keep) < len(queue):
                out += [item for item in queue if wanted(item)]
                queue.clear()
                queue.extend(keep)
        for key in [key for key in self._ready if not self._queues[key]]:
            del self._ready[key], self._queues[key]
        for keys in self._waiting.values():
            empty = [key for key in keys if not self._queues[key]]
            for key in empty:
                keys.remove(key)
                del self._queues[key]
        self._count -= len(out)
        if self._count == 0:
            self._drained.set()
        return out

    async def join(self) -> None:
        """Wait until nothing is queued or under way."""
        await self._drained.wait()

    async def cancel(self) -> None:
        """Cancel what is under way and wait for it to end; what was queued is dropped. Nothing begins afterwards."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queues.clear()
        self._ready.clear()
        self._waiting.clear()
        self._count = 0
        self._drained.set()

    def _make_ready(self, key: Hashable) -> None:
        self._ready[key] = None
        self._wake()

    def _wake(self) -> None:
        if not self._going:
            self._going = True
            asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        """Start what may run now."""
        self._going = False
        if self._closed:
            return
        ready, self._ready = self._ready, {}
        for key in ready:
            group = None if self._grouping is None else self._grouping.of(self._queues[key][0])
            if group is None:
                self._start(self._run_one(key))
            else:
                self._waiting.setdefault(group, deque()).append(key)
        for group, keys in self._waiting.items():
            assert self._grouping is not None
            while keys and self._under_way.get(group, 0) < self._grouping.at_once(group):
                items, taken = self._form(group, keys)
                if len(items) > 1:
                    self._under_way[group] = self._under_way.get(group, 0) + 1
                    self._start(self._run_many(group, items, taken))
                elif items:
                    self._queues[taken[0]].appendleft(items[0])
                    self._start(self._run_one(taken[0]))

    def _form(self, group: Hashable, keys: deque[Hashable]) -> tuple[list[I], list[Hashable]]:
        """The next batch, and for each of its items the key. What fits no more stays in ``keys``."""
        assert self._grouping is not None
        items: list[I] = []
        taken: list[Hashable] = []
        while keys:
            key = keys[0]
            queue = self._queues[key]
            if self._grouping.of(queue[0]) is not group:
                self._make_ready(keys.popleft())  # it was paused, or is given back
                continue
            if items and not self._grouping.fits(items, queue[0]):
                break
            keys.popleft()
            items.append(queue.popleft())
            taken.append(key)
            while queue and self._grouping.of(queue[0]) is group and self._grouping.fits(items, queue[0]):
                items.append(queue.popleft())
                taken.append(key)
        return items, taken

    def _start(self, running: Awaitable[None]) -> None:
        task = asyncio.ensure_future(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_one(self, key: Hashable) -> None:
        """The first of a key, and those after it that run by themselves as well. All may have been withdrawn meanwhile:
        this begins a turn of the loop later than it was asked for."""
        queue = self._queues[key]
        try:
            while queue:
                try:
                    await self._work(queue.popleft())
                finally:
                    self._count -= 1
                if queue and self._grouping is not None and self._grouping.of(queue[0]) is not None:
                    break
        except BaseException as error:
            self._drop(key)
            if self._closed:
                raise
            self._on_failure(_told(error))
        self._free([key])

    async def _run_many(self, group: Hashable, items: Sequence[I], keys: Sequence[Hashable]) -> None:
        assert self._work_many is not None
        again: set[int] = set()
        try:
            again = {id(item) for item in await self._work_many(items)}
        except BaseException as error:
            if self._closed:
                raise
            self._on_failure(_told(error))
        finally:
            self._under_way[group] -= 1
            for item, key in zip(reversed(items), reversed(keys), strict=True):
                if id(item) in again:
                    self._queues[key].appendleft(item)
                else:
                    self._count -= 1
            self._free(dict.fromkeys(keys))
            if self._waiting.get(group):
                self._wake()

    def _drop(self, key: Hashable) -> None:
        queue = self._queues[key]
        self._count -= len(queue)
        queue.clear()

    def _free(self, keys: Sequence[Hashable] | dict[Hashable, None]) -> None:
        for key in keys:
            if self._queues[key]:
                self._make_ready(key)
            else:
                del self._queues[key]
        if self._count == 0:
            self._drained.set()


def _told(error: BaseException) -> Exception:
    """As an exception that a future can carry. A cancellation that is not ours is a failure too: what this task had in
    hand would be in flight for ever."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"a task that works messages off ended with {type(error).__name__}")
    told.__cause__ = error
    return told
