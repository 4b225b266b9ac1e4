"""Connections for units: Relevo's own, a pool's or a factory's, behind two calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from relevo.storage.transactions.severing import sever


@dataclass(frozen=True, slots=True)
class Lender:
    """``acquire()`` gives a connection; ``release(connection, broken)`` takes it back. Either may return an awaitable
    where the connections are asynchronous. ``close()`` closes what Relevo opened itself."""

    acquire: Callable[[], Any]
    release: Callable[[Any, bool], Any]
    close: Callable[[], list[Any]]
    """Returns what still has to be awaited."""
    source: Any = None
    """The application's pool, if there is one."""
    forget: Callable[[], None] = lambda: None
    """Drops what Relevo opened itself and lies idle."""
    keeps: bool = False
    """Relevo opened them, and uses them again."""


def own(
    connect: Callable[[], Any],
    end: Callable[[Any], Any] = lambda connection: connection.close(),
    idles: Callable[[Any], bool] = lambda connection: True,
) -> Lender:
    """Keeps what ``connect`` opened for the next unit. As many as units run at once; the engine bounds those. ``end``
    closes one, and waits for no answer without bound. ``idles``: whether nothing uses it: a handler that kept its
    ``tx`` may go on with it after its transaction."""
    idle: deque[Any] = deque()
    closed = False

    def acquire() -> Any:
        while True:
            try:
                connection = idle.pop()  # atomic: used by several threads
            except IndexError:
                return connect()
            if getattr(connection, "closed", False):
                continue
            if idles(connection):
                return connection
            sever(connection)

    def release(connection: Any, broken: bool) -> Any:
        if broken and _lost(connection):
            forget()
        if broken or closed:
            return end(connection)
        idle.append(connection)
        return None

    def forget() -> None:
        """What broke one connection broke its siblings, more likely than not."""
        with suppress(IndexError):
            while True:
                sever(idle.pop())

    def close() -> list[Any]:
        nonlocal closed
        closed = True
        results = []
        while idle:
            results.append(end(idle.pop()))
        return [result for result in results if isawaitable(result)]

    return Lender(acquire, release, close, forget=forget, keeps=True)


def _lost(connection: Any) -> bool:
    """Closed, by whomever. (asyncpg has a method for it.)"""
    asks = getattr(connection, "is_closed", None)
    return bool(asks() if callable(asks) else getattr(connection, "closed", False))


def pooled(pool: Any) -> Lender:
    """``psycopg_pool``: ``getconn`` and ``putconn``. asyncpg's pool: ``acquire`` and ``release``."""
    if hasattr(pool, "getconn"):
        return Lender(pool.getconn, lambda connection, _: pool.putconn(connection), list, pool)
    return Lender(pool.acquire, lambda connection, _: pool.release(connection), list, pool)


def made(factory: Callable[[], Any]) -> Lender:
    """A new connection from ``factory`` for every unit, closed afterwards."""
    return Lender(factory, lambda connection, _: connection.close(), list)


async def resolved(value: Any) -> Any:
    """``value``, awaited if it has to be."""
    return await value if isawaitable(value) else value
