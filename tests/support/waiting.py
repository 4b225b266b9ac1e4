"""Waiting for facts: poll a condition until it holds or a deadline passes. Nothing waits for time alone."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

FROZEN_ON_SQLITE = (
    "a process frozen inside a write transaction blocks an SQLite file: there is no server to end it "
    "(docs/reference/guarantees.md)"
)
"""Why tests that freeze a process at a point do not run on SQLite: its other threads may be anywhere."""


async def eventually(
    condition: Callable[[], T] | Callable[[], Awaitable[T]],
    *,
    what: str,
    timeout_s: float = 20.0,
    every_s: float = 0.01,
) -> T:
    """The first truthy value of ``condition``; an AssertionError says ``what`` was waited for, and the last value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value  # type: ignore[return-value]
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what} (last value: {value!r})")
        await asyncio.sleep(every_s)


def eventually_sync(condition: Callable[[], T], *, what: str, timeout_s: float = 20.0, every_s: float = 0.02) -> T:
    """As ``eventually``, for tests without a loop."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what} (last value: {value!r})")
        time.sleep(every_s)
