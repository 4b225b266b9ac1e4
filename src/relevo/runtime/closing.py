"""Leaving in bounded time, also where a peer does not answer: a stop never waits for a peer that hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from relevo.bounds import CLEANUP_S

T = TypeVar("T")
log = logging.getLogger("relevo")

MOMENT_S: Final = CLEANUP_S + 0.5
"""For what was cancelled to leave its connection."""


async def stoppable(
    work: Coroutine[Any, Any, T], stop: asyncio.Event, begun: Callable[[], bool], finish_s: float, leave_s: float
) -> T | None:
    """The result of ``work``. Once ``stop`` is set it has ``finish_s`` seconds to end by itself, and none unless it has
    ``begun``; then it is cancelled, and has ``leave_s`` for that. ``None`` where it was cut short so."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and begun():
            await asyncio.wait({task}, timeout=finish_s)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task}, timeout=leave_s)
        if not task.done():
            log.error("not all was given back within %g s after a stop: it is left to expire", finish_s + leave_s)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.warning("while it stopped: %s: %s", type(error).__name__, error)
        return None
    except asyncio.CancelledError:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=leave_s)
        raise
    finally:
        stopping.cancel()


async def within(what: str, work: Callable[[], Awaitable[object]], timeout_s: float) -> bool:
    """Whether ``work()`` ended well within ``timeout_s``; then it is cancelled. Why not is logged, never raised."""
    task = asyncio.ensure_future(work())
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            log.warning("%s did not end within %g s and is left to expire", what, timeout_s)
            task.cancel()
            await asyncio.wait({task}, timeout=MOMENT_S)
            return False
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=MOMENT_S)
        raise
    if task.cancelled():
        return False
    if (error := task.exception()) is not None:
        log.warning("%s failed and is left to expire: %s: %s", what, type(error).__name__, error)
        return False
    return True
