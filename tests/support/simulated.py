"""Hours in seconds: an event loop, a clock and SQLite's own clock that agree on a simulated time.

Time stands still while anything has something to do, and jumps to the next timer when nothing has. What would run in a
thread runs at once, in the loop's own thread: a database call takes no simulated time at all.
"""

from __future__ import annotations

import asyncio
import selectors
import sqlite3
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from relevo.clients import sqlite as sqlite_client
from relevo.clients.sqlite import sqlite_path
from relevo.consumer.threads import HandlerThreads
from relevo.runtime.clock import Clock

T = TypeVar("T")

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
_UNIX_EPOCH_DAY = 2_440_587.5


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Never waits: tells the loop how far to jump."""

    jump: Callable[[float], None]

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout != 0:
            assert timeout is not None, "nothing will ever happen again: everybody waits for somebody else"
            self.jump(timeout)
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now_s = 0.0
        selector = _Jumping()
        selector.jump = self._jump
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def wall(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.now_s)

    @property
    def clock(self) -> Clock:
        return Clock(self.time, self.wall)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _jump(self, seconds: float) -> None:
        self.now_s += seconds


def simulate(monkeypatch: pytest.MonkeyPatch, work: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """Run ``work`` to its end in simulated time. SQLite connections that Relevo opens tell that time too."""
    loop = SimulatedLoop()
    real = sqlite_client.connect

    def connect(path: Path, **options: Any) -> sqlite3.Connection:
        return tell_time(real(path, **options), loop)

    async def at_once(threads: HandlerThreads, job: Callable[[], Any]) -> Any:
        return job()

    monkeypatch.setattr(sqlite_client, "connect", connect)
    monkeypatch.setattr(HandlerThreads, "run", at_once)
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def tell_time(connection: sqlite3.Connection, loop: SimulatedLoop) -> sqlite3.Connection:
    """Let ``julianday('now')``, which is all that Relevo's statements ask, be the simulated time."""
    connection.create_function("julianday", 1, lambda _: _UNIX_EPOCH_DAY + loop.wall().timestamp() / 86_400)
    return connection


def connect(url: str, loop: SimulatedLoop) -> sqlite3.Connection:
    """A plain connection of the test's own, in autocommit."""
    return tell_time(sqlite3.connect(sqlite_path(url), isolation_level=None), loop)
