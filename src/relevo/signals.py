"""Wake-ups inside one process: whoever adds says so, whoever polls may stop sleeping.

Only a hint: a signal may come early (before the commit is visible), twice or, from another process, never. Polling is
always there. ``notify`` costs one attribute read when nobody listens.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Final

OUTBOX: Final = "outbox"
"""The channel on which ``Outbox`` speaks."""

_lock = threading.Lock()
_listeners: dict[str, tuple[Wakeup, ...]] = {}


def notify(channel: str = OUTBOX) -> None:
    """Wake everyone who listens on ``channel``. Thread-safe, never waits, never raises; coalesced per listener."""
    for listener in _listeners.get(channel, ()):
        listener.set()


def subscribe(channel: str = OUTBOX) -> Wakeup:
    """Start listening; close the returned ``Wakeup`` (or leave its ``with``) to stop."""
    wakeup = Wakeup(channel)
    with _lock:
        _listeners[channel] = (*_listeners.get(channel, ()), wakeup)
    return wakeup


class Wakeup:
    """One listener. ``set`` from any thread; ``wait`` from one task at a time."""

    def __init__(self, channel: str = OUTBOX) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._is_set = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def set(self) -> None:
        """Wake the waiter, or make the next ``wait`` return at once."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
            waiter = self._waiter
        if waiter is not None:
            loop, future = waiter
            try:
                loop.call_soon_threadsafe(_release, future)
            except RuntimeError:
                pass  # that loop is closed: nobody waits there any more

    @property
    def is_set(self) -> bool:
        """Whether a signal came that no ``wait`` has taken yet."""
        return self._is_set

    def stir(self) -> None:
        """End the ``wait`` under way, if there is one, without a signal. From its event loop's thread only."""
        waiter = self._waiter
        if waiter is not None:
            _release(waiter[1])

    async def wait(self, timeout_s: float) -> bool:
        """Wait until signalled or stirred, ``timeout_s`` seconds at most; whether a signal came since the last
        ``wait``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._is_set:
                self._is_set = False
                return True
            self._waiter = (loop, future)
        timer = loop.call_later(timeout_s, _release, future)
        try:
            await future
        finally:
            timer.cancel()
            with self._lock:
                self._waiter = None  # a cancelled wait leaves the signal for the next one
        with self._lock:
            came, self._is_set = self._is_set, False
        return came

    def close(self) -> None:
        """Stop listening. Idempotent."""
        with _lock:
            rest = tuple(each for each in _listeners.get(self._channel, ()) if each is not self)
            if rest:
                _listeners[self._channel] = rest
            else:
                _listeners.pop(self._channel, None)

    def __enter__(self) -> Wakeup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
