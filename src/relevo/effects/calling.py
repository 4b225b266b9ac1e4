"""Calling what an effect was declared with: a coroutine on the loop, a plain function in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from relevo.effects.declaring import EffectRequest
from relevo.effects.verdicts import NotDone
from relevo.errors import MisuseError
from relevo.runtime.calls import Raised, kept, kept_on_loop
from relevo.runtime.returned import deferred_in, end, is_awaitable
from relevo.runtime.texts import clean
from relevo.total import name_of, text_of

SLACK_S: Final = 0.25
"""How long what was cancelled, or ends by itself, may take to end."""


async def called(function: Callable[[EffectRequest], Any], request: EffectRequest) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(request)
    result = value_of(await in_thread(lambda: function(request)))
    return await result if is_awaitable(result) else result


async def awaited(result: Any) -> Any:
    return await result


def on_loop(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """``work`` in a task of its own: what it returns, or ``Raised``."""
    return asyncio.get_running_loop().create_task(kept_on_loop(work))


async def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    """What ``work`` returns, or raises, in a task of its own; ``TimeoutError`` where that takes longer. It is cancelled
    then, and left behind where it does not end."""
    task = on_loop(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not await stopped(task):
            raise TimeoutError
    finally:
        task.cancel()
    return value_of(task.result())


async def stopped(task: asyncio.Task[Any]) -> bool:
    """Cancel ``task`` unless it is done; whether it has an answer after a moment."""
    if task.done():
        return True
    task.cancel()
    await asyncio.wait({task}, timeout=SLACK_S)
    if not task.done():
        return False
    return not task.cancelled() and not is_cancellation(task.result())


def is_cancellation(result: Any) -> bool:
    return type(result) is Raised and issubclass(type(result.error), asyncio.CancelledError)


def value_of(result: Any) -> Any:
    """What a call returned; raises what it raised."""
    if type(result) is Raised:
        raise result.error
    return result


def done_with(result: Any) -> Any:
    """What an act returned, unless that is work that nothing runs: then it is not known to be done."""
    found = deferred_in(result)
    for each in found:
        end(each)
    if found:
        raise MisuseError(f"the act returned a {clean(name_of(type(found[0])), 200)}, which nothing runs")
    return result


def in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """In a thread of its own that does not keep the process alive: an act that hangs must not. The future's result is
    what ``work`` returns, or ``Raised``. Raises ``NotDone`` where there is no room for a thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any) -> None:
        if not future.done():  # else it timed out or was cancelled: its answer comes too late
            future.set_result(result)

    def run() -> None:
        result = kept(work)
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:
            pass  # the loop is closed: the process is leaving

    try:
        threading.Thread(target=run, name="relevo-effect", daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        raise NotDone(f"no thread can be started: {text_of(error)}") from None
    return future
