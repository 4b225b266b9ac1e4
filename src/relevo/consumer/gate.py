"""Which handlers run at once in a process: ordinary messages side by side, a suspect alone.

A suspect is a message that was in hand when its process died. It is run alone to find out whether it kills its process,
so that it spends its attempts by itself. No slow handler stops the process for its duration, though:

- Before a suspect begins, the gate is closed for ``grace_s`` at most. Handlers that still run then have run for that
  long without harm, and go on beside it.
- A suspect that has run for ``grace_s`` has not killed the process at once; then the gate opens again.
- Only the last attempt of a suspect is strictly alone, from its begin to its end: the process died with all attempts
  before it, perhaps because of a neighbour's. It waits until nothing else runs, and the gate opens in between.

So what is parked has run alone, and a neighbour is never parked for what a killer did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

GRACE_S: Final = 1.0
"""Above what most handlers need, and below what their callers notice."""
OPEN_FACTOR: Final = 4
"""A last attempt leaves the gate open for so many times ``GRACE_S``, after it was closed in vain."""
PROBLEM_S: Final = 5.0
"""Closed for longer, the gate is a problem of the process."""


@dataclass(slots=True, eq=False)
class _Alone:
    """A suspect that keeps others out. ``since``: when it closed the gate."""

    what: str
    last: bool
    since: float
    running: bool = False


class Gate:
    """One per process, shared by its consumers: what kills the process kills them all. For one event loop.

    Suspects begin one after the other. Between two of them everything that waits is let in.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._running = 0
        self._suspects_waiting = 0
        self._closed: _Alone | None = None
        self._turn = asyncio.Lock()
        self._entrants: deque[asyncio.Future[None]] = deque()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        """Run beside other ordinary messages. Waits while the gate is closed."""
        if self._closed is None:
            self._entered()
        else:
            await self._let_in()
        try:
            yield
        finally:
            self._left()

    @asynccontextmanager
    async def alone(self, what: str = "", *, last: bool = False) -> AsyncIterator[None]:
        """Run as a suspect. ``what``: for people. ``last``: strictly alone, and until it ends."""
        self._suspects_waiting += 1
        try:
            suspect = await self._close(what, last)
        finally:
            self._suspects_waiting -= 1
        timer = None if last else asyncio.get_running_loop().call_later(self._grace_s, self._open, suspect)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._open(suspect)
            self._left()

    @property
    def problem(self) -> str | None:
        """For readiness: why this process handles nothing else, if it has not for a while."""
        closed = self._closed
        if closed is None or (age_s := monotonic() - closed.since) < PROBLEM_S:
            return None
        return (
            f"{closed.what or 'a message'} has run alone for {age_s:.0f} s, since the process died with its attempts "
            "before; everything else waits until its handler ends"
        )

    def snapshot(self) -> dict[str, Any]:
        """From memory: ``running`` and ``waiting`` (runs of handlers), ``suspects_waiting``, and the suspect that keeps
        others out: ``alone``, ``last_attempt``, ``closed_s``."""
        closed = self._closed
        return {
            "running": self._running,
            "waiting": len(self._entrants),
            "suspects_waiting": self._suspects_waiting,
            "alone": None if closed is None else closed.what,
            "last_attempt": closed is not None and closed.last,
            "closed_s": None if closed is None else round(monotonic() - closed.since, 3),
        }

    async def _close(self, what: str, last: bool) -> _Alone:
        """Close the gate behind what runs, and enter. The turn is held until the gate opens."""
        while True:
            await self._turn.acquire()
            suspect = self._closed = _Alone(what, last, monotonic())
            try:
                quiet = await self._is_quiet(self._grace_s)
            except BaseException:
                self._open(suspect)
                raise
            if quiet or not last:
                suspect.running = True
                self._entered()
                return suspect
            self._open(suspect)
            await self._is_quiet(OPEN_FACTOR * self._grace_s)

    async def _is_quiet(self, seconds: float) -> bool:
        """Whether nothing runs, at once or within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return self._running == 0

    def _open(self, suspect: _Alone) -> None:
        """Let everyone in who waits; the next suspect's turn comes after them. Nothing if it is open again already."""
        if self._closed is not suspect:
            return
        self._closed = None
        entrants, self._entrants = self._entrants, deque()
        for entrant in entrants:
            if not entrant.done():
                self._entered()
                entrant.set_result(None)
        self._turn.release()

    async def _let_in(self) -> None:
        entrant = asyncio.get_running_loop().create_future()
        self._entrants.append(entrant)
        try:
            await entrant
        except asyncio.CancelledError:
            if entrant.done() and not entrant.cancelled():
                self._left()  # it was let in and cancelled in the same moment
            raise

    def _entered(self) -> None:
        self._running += 1
        self._quiet.clear()

    def _left(self) -> None:
        self._running -= 1
        if not self._running:
            self._quiet.set()
