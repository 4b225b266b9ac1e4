"""Keeping the position: a few times a second while it moves, with copies at once, and now and then over foreign WAL."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from relevo.clients.watch import LOOKS
from relevo.errors import LostOwnershipError, RelevoError, UnreachableError
from relevo.ports.database import Database
from relevo.sources.wal.connecting import Connected
from relevo.sources.wal.lease import ReaderLease
from relevo.sources.wal.window import Page, Window
from relevo.storage import waling
from relevo.storage.waling import Aside, Barrier
from relevo.tasks import Kept, Tasks

log = logging.getLogger("relevo.relay")

SAVE_S = 0.2
"""How long a settled page may be known to memory alone: what a crash repeats."""
STATUS_S = 5.0
"""How often the server hears from us, whatever else happens: it ends a stream whose reader is silent for a minute."""
SILENCE_MAX_S = 60.0
"""How long the server may be silent, though asked, before it counts as gone, at most: one that decodes a large
transaction of others may answer late, and begins it again with each stream."""
ADVANCE_BYTES = 65_536
"""Foreign WAL that is passed over before it is worth a commit."""
BARRIER_S = 10.0
"""How often the table is told how far it was read: for retention, and for the day the slot is lost."""


class Keeper:
    """The position of one stream, in memory, in its row and at the slot, in that order."""

    def __init__(
        self, database: Database, lease: ReaderLease, epoch: int, connected: Connected, window: Window, silence_s: float
    ) -> None:
        """``silence_s``: how long the server may be silent, though asked."""
        self.window = window
        self.failure: RelevoError | None = None
        """Why the position cannot be kept; for the next who settles or takes."""
        self._database = database
        self._lease = lease
        self._epoch = epoch
        self._connected = connected
        self._silence_s = silence_s
        self._status_s = min(STATUS_S, silence_s / LOOKS)
        self.silent = False
        """The server was silent for too long."""
        self._saved = window.passed
        self._dirty = asyncio.Event()
        self._lock = asyncio.Lock()
        self._barrier: Barrier | None = None
        self._passed_at = 0.0
        self._untold = False
        """Something was settled that the table was not told of."""
        self._task: Kept | None = None

    def begin(self, wake: Callable[[], None]) -> None:
        tasks = Tasks("relay", log)
        self._task = tasks.keep(
            "keeping the position",
            partial(self._keep, wake),
            may_end=lambda: self.failure is not None or self._lease.epoch is None,
        )

    def settle(self, page: Page, done: Sequence[int]) -> None:
        """These are settled; their position is saved within ``SAVE_S``."""
        self.window.settle(page, done)
        self._untold = True
        self._dirty.set()

    async def save(self, page: Page | None = None, done: Sequence[int] = (), asides: Sequence[Aside] = ()) -> None:
        """Save the position, as it is once ``done`` of ``page`` are settled, with copies of ``asides``."""
        async with self._lock:
            position = self.window.position(page, done)
            if position <= self._saved and not asides:
                return
            barrier = self._barrier
            passed = barrier if barrier is not None and barrier.lsn <= position.lsn else None
            await self._database.run(
                waling.save(self._lease.slot, self._lease.holder, self._epoch, position, asides, passed),
                idle_timeout_s=self._lease.lease_s / 2,
            )
            self._saved = position
            if passed is not None:
                self._barrier, self._passed_at = None, time.monotonic()
        self._connected.stream.confirm(position.lsn)

    async def end(self) -> None:
        """Stop, and save for the last time. Raises as the database does."""
        task, self._task = self._task, None
        if task is not None:
            async with self._lock:  # not in the middle of a commit
                task.cancel()
            await task.over
        if self.failure is None and self._lease.epoch is not None:
            await self.save()

    async def _keep(self, wake: Callable[[], None]) -> None:
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(
                        self._status_s
                    ):  # not wait_for: Python 3.11's can swallow a cancellation
                        await self._dirty.wait()
                if self._dirty.is_set():
                    self._dirty.clear()
                    await self._look_at_table()
                    await asyncio.sleep(SAVE_S)
                    await self.save()
                else:
                    await self._quiet()
        except LostOwnershipError:
            self._lease.epoch = None
        except RelevoError as error:
            self.failure = error
        except Exception as error:
            log.debug("the position of %s could not be saved", self._lease.slot, exc_info=error)
            self.failure = UnreachableError(f"the position of {self._lease.slot} could not be saved: {error}")
            self.failure.__cause__ = error
        wake()

    async def _quiet(self) -> None:
        """Nothing of ours came for a while: pass over what others wrote, and show that we live."""
        stream = self._connected.stream
        if self.window.pages:
            stream.asked = 0  # what it answers is read once there is room
        # Counted, not timed: for a process that was frozen the server was not silent.
        if stream.asked * self._status_s >= self._silence_s:
            self.silent = True
            raise UnreachableError(
                f"the server has not been heard on the stream of {self._lease.slot} for {self._silence_s:g} s"
            )
        position = self.window.position()
        if self._untold:
            await self._look_at_table()
        told = self._barrier is not None and self._barrier.lsn <= position.lsn
        if told or position.lsn - self._saved.lsn >= ADVANCE_BYTES:
            await self.save()
        else:
            stream.confirm(self._saved.lsn, reply=True)

    async def _look_at_table(self) -> None:
        """Fix a point of the table that will be passed; a saved position beyond it says so to the table."""
        if self._barrier is None and time.monotonic() - self._passed_at >= BARRIER_S:
            self._untold = False
            self._barrier = await self._database.run(waling.barrier(), read_only=True)
