"""Whether a thread or task waits for the answer to a statement on a driver's connection, seen from outside.

Asked only about a run that has taken long: it reads the stacks of threads and tasks, which costs a running one nothing.
A handler that computes, sleeps or asks another service between two statements waits for nothing here.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

_LAST_DATA: Final = (44, 52)
"""Where Linux's ``tcp_info`` has when data was last sent and last received, in milliseconds ago."""


def waits(connection: Any, quiet_s: float) -> bool:
    """Whether an answer is waited for on this connection of psycopg's or asyncpg's, and no data has moved for
    ``quiet_s``, in either direction. False where that is not known, as for other drivers."""
    if connection is None:
        return False
    if getattr(connection, "pgconn", None) is not None:
        if connection.closed or not _quiet(connection.pgconn.socket, quiet_s):
            return False
        return any(_is_psycopg(frame, connection) for stack in _stacks() for frame in stack)
    connection = getattr(connection, "_con", connection)
    transport = getattr(connection, "_transport", None)
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is None or connection.is_closed() or not _quiet(found.fileno(), quiet_s):
        return False
    return any(_is_asyncpg(list(stack), connection) for stack in _tasks())


def _quiet(fileno: int, quiet_s: float) -> bool:
    """Nothing has come or gone for ``quiet_s`` and nothing is there to be read. TCP on another system than Linux is not
    asked how long."""
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    if poll.poll(0):
        return False
    if not hasattr(socket, "TCP_INFO"):
        return True
    with socket.socket(fileno=os.dup(fileno)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6):
            return True
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, max(_LAST_DATA) + 4)
    ago_ms = min(struct.unpack_from("I", info, place)[0] for place in _LAST_DATA)
    return bool(ago_ms >= quiet_s * 1000)


def _is_psycopg(frame: FrameType, connection: Any) -> bool:
    """``Connection.wait`` and ``AsyncConnection.wait`` are where psycopg does all its waiting."""
    return frame.f_code.co_name == "wait" and frame.f_locals.get("self") is connection


def _is_asyncpg(stack: list[FrameType], connection: Any) -> bool:
    """asyncpg waits below its own code, which is compiled. A copy may wait for the application there."""
    if not stack or not stack[-1].f_globals.get("__name__", "").startswith("asyncpg."):
        return False
    if "copy" in stack[-1].f_code.co_name:
        return False
    owners = (frame.f_locals.get("self") for frame in stack)
    return any(owner is connection or getattr(owner, "_connection", None) is connection for owner in owners)


def _stacks() -> Iterator[Iterator[FrameType]]:
    yield from (_outwards(frame) for frame in sys._current_frames().values())
    yield from _tasks()


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _tasks() -> Iterator[Iterator[FrameType]]:
    yield from (_inwards(task.get_coro()) for task in asyncio.all_tasks())


def _inwards(awaited: Any) -> Iterator[FrameType]:
    """The frames of a task that is suspended, the innermost last."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        frame = frame or getattr(awaited, "ag_frame", None)
        if frame is not None:
            yield frame
        inner = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        inner = inner or getattr(awaited, "ag_await", None)
        if inner is None and frame is not None and frame.f_code.co_name == "within":  # of consumer/work
            inner = frame.f_locals.get("work")
        awaited = inner
