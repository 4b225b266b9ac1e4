"""What a handler or an act must not return: work that is still to be done. It would never be, and the message would
count as handled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import types
from itertools import chain, islice, starmap

from relevo.errors import MisuseError
from relevo.total import name_of

_MANY = (list, tuple, set, frozenset, dict)
_LOOKED_AT = 1_000
"""Members of a collection that are looked at."""
_LAZY = (
    types.CoroutineType,
    types.GeneratorType,
    types.AsyncGeneratorType,
    concurrent.futures.Future,
    map,
    filter,
    zip,
    chain,
    starmap,
    contextlib._GeneratorContextManager,
    contextlib._AsyncGeneratorContextManager,
)


def refuse_deferred(result: object) -> None:
    """Raise ``MisuseError`` for a coroutine, any other awaitable, a generator or a future, alone or in a list, tuple,
    set or dictionary, and close or cancel it. Anything else a handler returns is ignored."""
    found = deferred_in(result)
    if found:
        for each in found:
            end(each)
        raise MisuseError(
            f"the handler returned a {name_of(type(found[0]))}, which nothing runs: what it stands for did not happen, "
            "so the transaction is rolled back. Await it in an `async def` handler, or do the work before you return"
        )


def deferred_in(result: object) -> list[object]:
    """``result``, if it is work that is still to be done; or those members of it that are."""
    kind = type(result)
    if kind not in _MANY:  # a subclass may do anything when it is iterated
        return [result] if is_deferred(result) else []
    members = result.values() if kind is dict else result  # type: ignore[attr-defined]
    return [member for member in islice(members, _LOOKED_AT) if is_deferred(member)]  # type: ignore[arg-type]


def is_deferred(result: object) -> bool:
    kind = type(result)
    return issubclass(kind, _LAZY) or is_awaitable(result)


def is_awaitable(result: object) -> bool:
    kind = type(result)
    try:
        return hasattr(kind, "__await__")
    except BaseException:  # noqa: BLE001 - a metaclass of the application's
        return False


def end(result: object) -> None:
    """Close or cancel it: a coroutine that is never awaited would warn, a task would go on without the transaction."""
    cancels = issubclass(type(result), (asyncio.Future, concurrent.futures.Future))
    with contextlib.suppress(BaseException):  # it has no such method, or runs
        getattr(result, "cancel" if cancels else "close")()
