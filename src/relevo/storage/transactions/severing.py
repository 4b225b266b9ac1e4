"""Ending a transaction's connection from outside: from another thread or task, while its user waits for an answer.

The user sees a connection that is lost, as if the server had closed it. Nothing here waits.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from inspect import isawaitable
from typing import Any

from relevo.bounds import ANSWER_S, CLEANUP_S, keepalives
from relevo.clients.cancelling import abandon
from relevo.clients.watch import shut
from relevo.storage.transactions.waiting import waits


def sever(driver_connection: Any) -> bool:
    """Whether a driver's connection could be ended: psycopg's, asyncpg's, and what has a ``fileno`` (psycopg2)."""
    if driver_connection is None:
        return False
    terminate = getattr(driver_connection, "terminate", None)
    if callable(terminate):  # asyncpg; on the loop, as this is called
        terminate()
        return True
    pgconn = getattr(driver_connection, "pgconn", None)
    if pgconn is not None:
        abandon(pgconn)
        return True
    fileno = getattr(driver_connection, "fileno", None)
    if not callable(fileno) or driver_connection.closed:
        return False
    shut(fileno())
    return True


class OnConnection:
    """What a unit on a driver's connection needs to be ended from outside."""

    _lender: Any
    _connection: Any
    _distrusted = False

    def distrust(self) -> None:
        self._distrusted = True

    def sever(self) -> bool:
        return sever(self._connection)

    def waits_for_pool(self) -> bool:
        return self._connection is None and exhausted(self._lender.source)

    def waits(self, quiet_s: float) -> bool:
        return waits(self._connection, quiet_s)


class OnEngine:
    """What a unit on a SQLAlchemy engine of either kind needs to be ended from outside."""

    _engine: Any
    _connection: Any
    _driver: Any
    _guard: Any
    _owned: bool
    _distrusted = False

    def distrust(self) -> None:
        self._distrusted = True

    def _ends_with(self, connection: Any) -> bool:
        """Whether ``connection`` is not used again. What lies in an application's pool is the application's to reset;
        but SQLite's may refuse each statement of Relevo's from now on, and costs little to open."""
        if self._distrusted:
            return self._owned or bool(connection.dialect.name == "sqlite")
        return self._owned and self._guard is not None and bool(self._guard.lasts)

    def sever(self) -> bool:
        return sever(self._driver)

    def waits_for_pool(self) -> bool:
        return self._connection is None and exhausted(self._engine)

    def waits(self, quiet_s: float) -> bool:
        return waits(self._driver, quiet_s)


async def disposed(engine: Any) -> None:
    """Close the engine's idle connections; one that hangs is closed with the process."""
    done = engine.dispose()
    if isawaitable(done):
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_S):
                await done


def keep_alive(connection: Any) -> None:
    """TCP of an asyncpg connection as libpq's would be set. asyncpg has no settings for it, and its transport is not
    public: where that has changed the system's own time-outs hold."""
    transport = getattr(connection, "_transport", None)
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    values = keepalives(ANSWER_S)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, name in _TCP.items():
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), values[name])


_TCP = {
    "TCP_KEEPIDLE": "keepalives_idle",
    "TCP_KEEPINTVL": "keepalives_interval",
    "TCP_KEEPCNT": "keepalives_count",
    "TCP_USER_TIMEOUT": "tcp_user_timeout",
}


def exhausted(source: Any) -> bool:
    """Whether the application's pool has no free connection and may make none: a caller then waits for other users
    of the pool, and not for a server. False where that is not known."""
    pool = getattr(getattr(source, "sync_engine", source), "pool", source)
    try:
        match type(pool).__name__:
            case "QueuePool" | "AsyncAdaptedQueuePool":
                return bool(pool.checkedout() >= pool.size() + pool._max_overflow >= pool.size())
            case "ConnectionPool" | "AsyncConnectionPool":
                stats = pool.get_stats()
                return bool(stats["pool_available"] == 0 and stats["pool_size"] >= stats["pool_max"])
            case "Pool":
                return bool(pool.get_idle_size() == 0 and pool.get_size() >= pool.get_max_size())
    except (AttributeError, KeyError, TypeError):
        pass  # another version of the library: not known
    return False
