"""What a handler or an act must not return: work that is still to be done. It would never be, and the message would
count as handled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import types

from relevo.errors import MisuseError
from relevo.total import name_of

_LAZY = (
    types.CoroutineType,
    types.GeneratorType,
    types.AsyncGeneratorType,
    concurrent.futures.Future,
    map,
    filter,
    zip,
    contextlib._GeneratorContextManager,
    contextlib._AsyncGeneratorContextManager,
)


def refuse_deferred(result: object) -> None:
    """Raise ``MisuseError`` for a coroutine, any other awaitable, a generator or a future, and close or cancel it.
    Anything else a handler returns is ignored."""
    if is_deferred(result):
        end(result)
        raise MisuseError(
            f"the handler returned a {name_of(type(result))}, which nothing runs: what it stands for did not happen, "
            "so the transaction is rolled back. Await it in an `async def` handler, or do the work before you return"
        )


def is_deferred(result: object) -> bool:
    kind = type(result)
    return issubclass(kind, _LAZY) or is_awaitable(result)


def is_awaitable(result: object) -> bool:
    kind = type(result)
    try:
        return hasattr(kind, "__await__")
    except BaseException:  # noqa: BLE001 - a metaclass of somebody else's
        return False


def end(result: object) -> None:
    """Close or cancel it: a coroutine that is never awaited would warn, a task would go on without the transaction."""
    cancels = issubclass(type(result), (asyncio.Future, concurrent.futures.Future))
    with contextlib.suppress(BaseException):  # it has no such method, or runs
        getattr(result, "cancel" if cancels else "close")()
