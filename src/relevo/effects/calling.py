"""Calling what an effect was declared with: a coroutine on the loop, a plain function in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from relevo.effects.declaring import EffectRequest
from relevo.errors import MisuseError
from relevo.runtime.calls import Raised, apart
from relevo.runtime.returned import deferred_in, end, is_awaitable
from relevo.runtime.texts import clean
from relevo.total import name_of


async def called(function: Callable[[EffectRequest], Any], request: EffectRequest) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(request)
    result = await in_thread(lambda: function(request))
    return await result if is_awaitable(result) else result


async def awaited(result: Any) -> Any:
    return await result


async def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    """What ``work`` returns, or raises, in a task of its own; ``TimeoutError`` where that takes longer."""
    async with asyncio.timeout(seconds):
        result = await apart(work)
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
    """In a thread of its own that does not keep the process alive: an act that hangs must not."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return  # timed out or cancelled: its answer comes too late
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = work()
        except StopIteration as error:  # no future can carry it
            failure = RuntimeError(f"the act raised {error!r}")
        except BaseException as error:  # noqa: BLE001 - carried over
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            pass  # the loop is closed: the process is leaving

    threading.Thread(target=run, name="relevo-effect", daemon=True).start()
    return future
