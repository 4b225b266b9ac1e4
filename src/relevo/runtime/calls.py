"""Calling code that other people wrote: every error it raises is a failure of that code, and only a cancellation of the
caller's own task is a cancellation.

A coroutine runs in a task of its own, so that ``asyncio.current_task().cancel()`` inside it does not reach the caller.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from traceback import clear_frames
from typing import Any, Final, TypeVar

T = TypeVar("T")
_TRACE: Final = BaseException.__dict__["__traceback__"].__get__


@dataclass(frozen=True, slots=True)
class Raised:
    """What a call ended with instead of a result. As a value, since some exceptions end the event loop or the task that
    they pass."""

    error: BaseException


def ours(error: BaseException) -> bool:
    """Whether ``error``, just caught, is meant for this task or process: a cancellation of this task, or Ctrl+C where
    Python still raises it wherever the program is."""
    kind = type(error)
    if issubclass(kind, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    if kind is KeyboardInterrupt:
        in_main = threading.current_thread() is threading.main_thread()
        return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return False


def let_go(error: BaseException) -> None:
    """Where memory was exhausted, free what the frames that ``error`` came through still hold: what is done about it
    needs some."""
    if issubclass(type(error), MemoryError):
        with suppress(BaseException):
            clear_frames(_TRACE(error))


def kept(call: Callable[[], T]) -> T | Raised:
    """The result of a blocking ``call``, or what it raised. For a thread of its own."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - see the module
        let_go(error)
        return Raised(error)


async def apart(work: Coroutine[Any, Any, T]) -> T | Raised:
    """The result of ``work``, or what it raised. A cancellation of the caller reaches ``work`` and is raised here when
    that has ended."""
    task = asyncio.get_running_loop().create_task(kept_on_loop(work))
    try:
        result = await task
    except asyncio.CancelledError as error:  # before it began
        work.close()
        if ours(error):
            raise
        return Raised(error)
    if type(result) is Raised and ours(result.error):
        raise result.error
    return result


async def kept_on_loop(work: Coroutine[Any, Any, T]) -> T | Raised:
    """The result of ``work``, or what it raised. For a task of its own."""
    try:
        return await work
    except BaseException as error:
        if type(error) is KeyboardInterrupt and ours(error):
            raise
        let_go(error)
        return Raised(error)


async def uncancelled(task: asyncio.Task[Any], before: int) -> None:
    """Take back what code cancelled ``task``, its own, beyond the ``before`` times it was cancelled earlier. Raises
    ``CancelledError`` if that was not delivered yet."""
    while task.cancelling() > before:
        task.uncancel()
    await asyncio.sleep(0)
