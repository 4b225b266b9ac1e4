"""The broker's file: one connection in one thread per process, shared by its publishers and subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import ClassVar, Final, TypeVar

from relevo.brokers.embedded import schema
from relevo.brokers.embedded.retention import PURGE_EVERY_S, purge
from relevo.errors import ConfigError, RelevoError, UnreachableError

T = TypeVar("T")
Job = Callable[[], None]

POLL_MIN_S: Final = 0.001
POLL_MAX_S: Final = 0.05
"""Between looks at ``PRAGMA data_version`` while somebody waits for messages: from the first after news to the idle
pace. A look costs some microseconds; it reads shared memory, not the disk."""

SAME_EVERY_S: Final = 1.0
"""How often it is asked whether the path still leads to the file that is open."""

log = logging.getLogger("relevo.brokers.embedded")


class BrokerFile:
    """All SQLite work of this process on one file, in one thread. Methods may be called from any thread or loop."""

    _open: ClassVar[dict[tuple[int, Path], BrokerFile]] = {}
    _open_lock = threading.Lock()

    @classmethod
    def acquire(cls, path: Path, *, busy_timeout_s: float, retention_s: float) -> BrokerFile:
        """This process's handle on ``path``; every call needs its ``release``. The time-outs of the first one count."""
        with cls._open_lock:
            key = (os.getpid(), path.resolve())  # a forked child has the parent's object but not its thread
            file = cls._open.get(key)
            if file is None:
                file = cls._open[key] = cls(key, busy_timeout_s, retention_s)
            file._users += 1
            return file

    def __init__(self, key: tuple[int, Path], busy_timeout_s: float, retention_s: float) -> None:
        self.path = key[1]
        self.changes = 0
        """Moves whenever something was seen to be written; see ``watch``."""
        self.incarnation = 0
        """Moves when the file was replaced by another one: positions in it say nothing about the one before."""
        self._inode: tuple[int, int] | None = None
        self._same_at = 0.0
        self._key = key
        self._users = 0
        self._busy_timeout_s = busy_timeout_s
        self._retention_s = retention_s
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._watchers: dict[object, Callable[[], None]] = {}
        self._connection: sqlite3.Connection | None = None
        self._data_version = -1
        self._purge_at = time.monotonic() + PURGE_EVERY_S
        self._thread = threading.Thread(target=self._work, name="relevo-embedded-broker", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do ``work`` in the thread, after what was asked for before.

        Once asked for it is done, also when the caller is cancelled. Raises ``UnreachableError`` when the file cannot
        be used now, ``ConfigError`` when it is not a broker's file.
        """
        done: Future[T] = Future()

        def job() -> None:
            try:
                result = work(self._connected())
            except sqlite3.Error as error:
                _finish(done, error=explain(error, self.path))
            except Exception as error:  # noqa: BLE001 - carried over to the caller
                _finish(done, error=error)
            else:
                _finish(done, result=result)

        self._jobs.put(job)
        return await asyncio.wrap_future(done)

    @contextmanager
    def watching(self, wake: Callable[[], None], seen: int) -> Iterator[None]:
        """Call ``wake`` (from any thread) after each change to the file, by whichever process, beginning with those
        since ``changes`` was ``seen``."""
        token = object()
        self._watchers[token] = wake
        self._jobs.put(_nothing)  # the thread may be waiting without a time limit
        if self.changes != seen:
            wake()
        try:
            yield
        finally:
            del self._watchers[token]

    @contextmanager
    def patience(self, connection: sqlite3.Connection, timeout_s: float) -> Iterator[None]:
        """Inside ``run``: wait ``timeout_s`` for other processes' writes, not as long as the others of this file do."""
        connection.execute(f"pragma busy_timeout = {int(timeout_s * 1000)}")
        try:
            yield
        finally:
            connection.execute(f"pragma busy_timeout = {int(self._busy_timeout_s * 1000)}")

    def changed(self) -> None:
        """Tell the watchers of this process; its own writes do not move ``data_version`` for it."""
        self.changes += 1
        for wake in list(self._watchers.values()):
            wake()

    async def release(self) -> None:
        """Let go; the last one closes the connection."""
        with self._open_lock:
            self._users -= 1
            if self._users:
                return
            self._open.pop(self._key, None)
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        pause_s = POLL_MIN_S
        while True:
            try:
                job = self._jobs.get(timeout=pause_s if self._watchers else PURGE_EVERY_S)
            except Empty:
                pause_s = POLL_MIN_S if self._look() else min(pause_s * 1.5, POLL_MAX_S)
            else:
                if job is None:
                    break
                if job is not _nothing:
                    job()
                    pause_s = POLL_MIN_S
            self._purge_if_due()
        if self._connection is not None:
            self._connection.close()

    def _look(self) -> bool:
        """Whether another process wrote."""
        try:
            (version,) = self._connected().execute("pragma data_version").fetchone()
        except (sqlite3.Error, RelevoError):
            return False  # whoever waits finds out with its next job
        if version == self._data_version:
            return False
        self._data_version = version
        self.changed()
        return True

    def _purge_if_due(self) -> None:
        if self._connection is None or not self._retention_s or time.monotonic() < self._purge_at:
            return
        self._purge_at = time.monotonic() + PURGE_EVERY_S
        try:
            if purge(self._connection, self._retention_s):
                self._purge_at = 0.0  # go on after the next job
        except sqlite3.Error:
            pass  # in a minute again

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and time.monotonic() >= self._same_at:
            self._close_if_replaced(self._connection)
        if self._connection is None:
            self._connection = schema.connect(self.path, self._busy_timeout_s)
            self._inode = _inode(self.path)
            self._same_at = time.monotonic() + SAME_EVERY_S
        return self._connection

    def _close_if_replaced(self, connection: sqlite3.Connection) -> None:
        self._same_at = time.monotonic() + SAME_EVERY_S
        if _inode(self.path) == self._inode:
            return
        log.warning("the embedded broker's file %s was replaced: opening the one that is there now", self.path)
        self._connection = None
        self._data_version = -1
        self.incarnation += 1
        with contextlib.suppress(sqlite3.Error):
            connection.close()


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction, committed at the end or rolled back by an error."""
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def explain(error: sqlite3.Error, path: Path) -> RelevoError:
    """What ``error`` means to the operator, by SQLite's result code."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return ConfigError(f"{path} is not a readable SQLite database ({name}): {error}")
    return UnreachableError(f"the embedded broker's file {path} cannot be used now ({name}): {error}")


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _nothing() -> None:
    return None


def _finish(done: Future[T], *, result: T | None = None, error: BaseException | None = None) -> None:
    try:
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]
    except InvalidStateError:
        pass  # the caller was cancelled
