"""A consumer for a process of its own with little memory. Run with `relevo consume`; one message takes all there is."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from relevo import Backoff, Consumer, Event
from tests.support.consumers import insert
from tests.support.events import OrderPlaced

ROOM_BYTES = 100 << 20
HOW = os.environ.get("TEST_HOW", "blocks")
retry = Backoff(attempts=3, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=200))
blocking = Consumer("billing", ["shop.order"], retry=retry)
awaited = Consumer("billing", ["shop.order"], retry=retry)


def limit() -> None:
    """No more address space than the process has now, and a little."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (has + ROOM_BYTES, resource.RLIM_INFINITY))


def by_blocks() -> None:
    taken = []
    while True:
        taken.append(bytearray(1 << 20))


def by_numbers() -> None:
    taken: list[Any] = []
    while True:
        taken = [taken, object(), str(len(taken)) * 100]


def by_recursion() -> None:
    def deeper(text: str) -> str:
        return deeper(text + text)

    deeper("relevo" * 1000)


DEVOUR: dict[str, Callable[[], None]] = {"blocks": by_blocks, "numbers": by_numbers, "texts": by_recursion}


@blocking.on(OrderPlaced)
def handle(event: Event[OrderPlaced], tx: Any) -> None:
    if event.data.order_id == 0:
        limit()
        DEVOUR[HOW]()
    insert(tx, event.data.order_id, str(event.attempt))


@awaited.on(OrderPlaced)
async def ahandle(event: Event[OrderPlaced], tx: Any) -> None:
    await asyncio.sleep(0)
    if event.data.order_id == 0:
        limit()
        DEVOUR[HOW]()
    done = insert(tx, event.data.order_id, str(event.attempt))
    if done is not None and hasattr(done, "__await__"):
        await done
