"""A total time for an act over the network.

A socket's time-out is for one operation: a peer that sends one byte now and then, or one interim answer after the
other, never exceeds it. When the time of a ``Deadline`` is over, the connection is shut down: a thread that waits on it
finds its end, or an error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """Used by one thread, as a context manager around the act. ``over``: whether the time was up before it ended."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds
        self._watched: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._shut_down)
        self._timer.daemon = True
        self.over = False

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        with self._lock:
            for each in self._watched:
                each.close()
            self._watched.clear()

    def left_s(self) -> float:
        """Seconds until it is over. Raises ``TimeoutError`` when it is."""
        left = self._end - monotonic()
        if left <= 0 or self.over:
            raise TimeoutError("the time for the act is over")
        return left

    def watch(self, connection: socket.socket) -> None:
        """Shut ``connection`` down when the time is over, also if it is wrapped for TLS later."""
        with self._lock:
            self.left_s()
            self._watched.append(socket.socket(fileno=os.dup(connection.fileno())))

    def connect(self, host: str, port: int) -> socket.socket:
        """A new connection, watched. Raises ``OSError``, of which ``TimeoutError`` is one."""
        connection = socket.create_connection((host, port), self.left_s())
        try:
            self.watch(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def call(self, work: Callable[[], T]) -> T:
        """``work()`` where it cannot be interrupted, as a look-up of a name. Raises ``TimeoutError`` when it takes too
        long; it goes on in a thread of its own then, and no caller waits for it."""
        ended, results, errors = threading.Event(), list[T](), list[BaseException]()

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                errors.append(error)
            ended.set()

        threading.Thread(target=run, name="relevo-effect-look-up", daemon=True).start()
        if not ended.wait(self.left_s()):
            raise TimeoutError("the time for the act is over")
        if errors:
            raise errors[0]
        return results[0]

    def _shut_down(self) -> None:
        with self._lock:
            self.over = True
            for each in self._watched:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
