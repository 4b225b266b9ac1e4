"""What a hostile handler does, as data: each deed once, for blocking and for awaited transactions.

A deed is a function of a ``Hand``. A generator yields what has to be awaited where the transaction is asynchronous, and
returns what the handler returns; any other function is called as it is.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

import psycopg

from relevo import Reject, Retry
from relevo.errors import ConfigError, LostOwnershipError, MisuseError, UnreachableError
from tests.support.hostile.errors import ODD_ERRORS, Panic, Unprintable

Right = Literal["held", "done", "either"]
"""Its key is held in the end, it is done, or one of the two (with its effect exactly if it is done)."""


@dataclass
class Hand:
    """What a deed has: the transaction, and SQL in it. ``insert``: the effect."""

    tx: Any
    sql: Callable[[str], Any]
    insert: Callable[[], Any]
    is_async: bool


@dataclass(frozen=True)
class Deed:
    """``needs``: what the kind of transaction must be: ``tx``, ``postgres``, ``async``, or one that has ``.name``."""

    act: Callable[[Hand], Any]
    right: Right
    needs: frozenset[str] = frozenset()


DEEDS: dict[str, Deed] = {}


def deed(name: str, right: Right, *needs: str) -> Callable[[Callable[[Hand], Any]], Callable[[Hand], Any]]:
    def declare(act: Callable[[Hand], Any]) -> Callable[[Hand], Any]:
        assert name not in DEEDS, name
        DEEDS[name] = Deed(act, right, frozenset(needs))
        return act

    return declare


def raises(name: str, make: Callable[[], BaseException], right: Right = "held") -> None:
    def act(_: Hand) -> None:
        raise make()

    DEEDS[f"raises {name}"] = Deed(act, right)


class Coded(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__(f"somebody else's database: {sqlstate}")
        self.sqlstate = sqlstate


class SilentRetry(Retry):
    def __init__(self) -> None:
        """Nothing of what it should have."""


class SilentReject(Reject):
    def __init__(self) -> None:
        """Nothing of what it should have."""

    @property
    def reason(self) -> Any:
        raise ZeroDivisionError

    @reason.setter
    def reason(self, _: Any) -> None: ...


def retry(after: Any) -> Retry:
    asked = Retry(0)
    asked.after = after
    return asked


for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, Panic, asyncio.CancelledError, asyncio.TimeoutError):
    raises(kind.__name__, kind)
for kind in (StopIteration, StopAsyncIteration, MemoryError, RecursionError, AssertionError, EOFError):
    raises(kind.__name__, kind)
for kind in (UnreachableError, LostOwnershipError, ConfigError, MisuseError, concurrent.futures.CancelledError):
    raises(kind.__name__, lambda kind=kind: kind("by the handler itself"))  # type: ignore[misc]
for name, make in ODD_ERRORS.items():
    raises(f"an error that {name}", make)
for code in ("08006", "57P01", "25006", "40001", "XX000", "58P01"):
    raises(f"another database's {code}", lambda code=code: Coded(code))  # type: ignore[misc]
raises("psycopg's OperationalError", lambda: psycopg.OperationalError("of another connection"))
raises("a group", lambda: BaseExceptionGroup("g", [Panic("x"), ValueError("y"), ExceptionGroup("h", [KeyError("z")])]))
for label, reason in {
    "an error": KeyError("price"),
    "a number": 404,
    "None": None,
    "bytes": b"\xff\x00",
    "huge": "€" * 3_000_000,
    "dirty": "a\x00\ud800\x1b[31m",
    "unprintable": Unprintable(),
    "a class": ValueError,
}.items():
    raises(f"Reject({label})", lambda reason=reason: Reject(reason))  # type: ignore[misc]
    raises(f"Retry(0, {label})", lambda reason=reason: Retry(0, reason))  # type: ignore[misc]
for after in (-5, float("nan"), float("inf"), "soon", None, b"1", object()):
    raises(f"Retry({after if type(after) is not object else 'object'})", lambda after=after: Retry(after))  # type: ignore[misc]
    raises(f"a Retry whose after is {after if type(after) is not object else 'an object'}", lambda a=after: retry(a))  # type: ignore[misc]
for after in (1e18, timedelta.max, Decimal("1e30"), 10**400):
    raises(f"Retry({str(after)[:12]})", lambda after=after: Retry(after))  # type: ignore[misc]
raises("a Retry without anything", SilentRetry)
raises("a Reject without anything", SilentReject)


@deed("recurses without end", "held")
def recurse(hand: Hand) -> Any:
    return recurse(hand) or recurse(hand)


@deed("allocates more than there is", "held")
def allocate(_: Hand) -> None:
    bytearray(1 << 62)


@deed("returns a coroutine", "held")
def coroutine(hand: Hand) -> Any:
    async def work() -> None: ...

    return work()


@deed("returns a generator", "held")
def generator(_: Hand) -> Any:
    return (number for number in range(3))


@deed("returns an asynchronous generator", "held")
def async_generator(_: Hand) -> Any:
    async def numbers() -> Any:
        yield 1

    return numbers()


@deed("returns a future", "held")
def future(_: Hand) -> Any:
    return concurrent.futures.Future()


@deed("returns a task", "held", "async")
def task(_: Hand) -> Any:
    return asyncio.get_running_loop().create_task(asyncio.sleep(60))


@deed("returns a context manager that was not entered", "held")
def manager(_: Hand) -> Any:
    return contextlib.contextmanager(lambda: iter(()))()


@deed("returns something", "done")
def something(hand: Hand) -> Any:
    yield hand.insert()
    return {"any": object()}


@deed("returns what raises when it is looked at", "done")
def looked_at(hand: Hand) -> Any:
    yield hand.insert()
    return ODD_ERRORS["lies about its class"]()


@deed("blocks", "done")
def block(hand: Hand) -> Any:
    yield hand.insert()
    time.sleep(0.3)


@deed("leaves a thread behind", "done")
def thread(hand: Hand) -> Any:
    yield hand.insert()
    threading.Thread(target=time.sleep, args=(2.0,), daemon=True).start()


@deed("leaves a task behind", "done", "async")
def leave_task(hand: Hand) -> Any:
    yield hand.insert()
    KEEP.add(asyncio.get_running_loop().create_task(asyncio.sleep(60)))


KEEP: set[asyncio.Task[Any]] = set()
"""Tasks that outlive their handlers; the test cancels them."""


@deed("cancels itself", "held", "async")
def cancel(hand: Hand) -> Any:
    yield hand.insert()
    current().cancel()
    yield asyncio.sleep(0)


@deed("cancels itself and returns", "held", "async")
def cancel_and_return(hand: Hand) -> Any:
    yield hand.insert()
    current().cancel()


@deed("cancels itself three times and catches it", "done", "async")
def cancel_and_catch(hand: Hand) -> Any:
    yield hand.insert()
    for _ in range(3):
        current().cancel()
        try:
            yield asyncio.sleep(0)
        except asyncio.CancelledError:
            continue


@deed("is cancelled by its own task", "held", "async")
def cancelled_later(hand: Hand) -> Any:
    yield hand.insert()
    asyncio.get_running_loop().call_soon(current().cancel)
    yield asyncio.sleep(5)


@deed("awaits what was cancelled", "held", "async")
def inner(hand: Hand) -> Any:
    yield hand.insert()
    sleeping = asyncio.get_running_loop().create_task(asyncio.sleep(5))
    asyncio.get_running_loop().call_soon(sleeping.cancel)
    yield sleeping


@deed("times out", "held", "async")
def time_out(hand: Hand) -> Any:
    yield hand.insert()
    yield asyncio.wait_for(asyncio.sleep(5), 0.01)


def current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


raises("sqlite3's error of a file that is locked", lambda: locked())


def locked() -> BaseException:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error
