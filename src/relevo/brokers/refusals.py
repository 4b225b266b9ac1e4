"""Keys that must wait behind a message that was not accepted: what makes a publisher prefix-safe across its calls."""

from __future__ import annotations

import asyncio
import threading
from typing import Final, TypeVar

from relevo.outcome import Unconfirmed

BEHIND: Final = Unconfirmed("not sent: an earlier message of its key was not accepted")

T = TypeVar("T")

OrderedKey = tuple[str, bytes]
"""Topic and key."""


class Refusals:
    """Remembers the keys refused in calls whose caller does not know it yet.

    A caller may have handed over later messages of a key before it learns that an earlier one was refused. So a refused
    key stays closed to every call that began before the refusing call ended, and a message turned away for it refuses
    its key in turn. A call that begins after the refusing one *returned* was made by somebody who could know: hence
    ``told``. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_call = 0
        self._under_way: set[int] = set()
        self._closed: dict[OrderedKey, int | None] = {}  # up to which call; None: the refusing call has not ended
        self._refused_by: dict[int, set[OrderedKey]] = {}

    def begin(self) -> int:
        """Number of a call that begins now."""
        with self._lock:
            self._last_call += 1
            self._under_way.add(self._last_call)
            return self._last_call

    def refuse(self, call: int, key: OrderedKey) -> None:
        """``call`` has not accepted a message of ``key``."""
        with self._lock:
            self._refused_by.setdefault(call, set()).add(key)
            self._closed[key] = None

    @property
    def some(self) -> bool:
        """Whether any key is closed: a look without the lock, which sees whatever was refused before it."""
        return bool(self._closed)

    def closed(self, call: int, key: OrderedKey) -> bool:
        """Whether a message of ``key`` in ``call`` must be turned away."""
        if not self._closed:
            return False
        with self._lock:
            if key not in self._closed:
                return False
            until = self._closed[key]
            return until is None or call <= until

    def end(self, call: int) -> None:
        """The outcomes of ``call`` are being given to its caller."""
        with self._lock:
            self._under_way.discard(call)
            for key in self._refused_by.pop(call, ()):
                if not any(key in refused for refused in self._refused_by.values()):
                    self._closed[key] = self._last_call
            oldest = min(self._under_way, default=self._last_call + 1)
            for key in [key for key, until in self._closed.items() if until is not None and until < oldest]:
                del self._closed[key]

    async def told(self, call: int, work: asyncio.Future[T]) -> T:
        """The result of ``work``; ``call`` ends in the very step in which its caller gets it, so that no call can begin
        between the two and count as one that knows. ``work`` goes on if the caller is cancelled."""
        try:
            return await asyncio.shield(work)
        finally:
            if work.done():
                self.end(call)
            else:
                work.add_done_callback(lambda _: self.end(call))
