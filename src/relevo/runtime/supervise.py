"""Signals for a process that works until it is asked to stop: the first drains, the second leaves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from relevo.errors import RelevoError

log = logging.getLogger("relevo")

_PYTHONS_THRESHOLDS = (700, 2000)  # up to 3.12, and from 3.13 on
_THRESHOLD = 50_000

SIGNALS = (signal.SIGTERM, signal.SIGINT)

DEBOUNCE_S: Final = 0.3
"""Signals that come so soon after one another are one: Ctrl+C reaches every process of the group, and a parent that
forwards it sends it once more."""


class StoppedError(RelevoError):
    """The process left before it had finished what was in flight; that is handed over again, with the same ids."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def calm_collector() -> None:
    """Look for cyclic garbage after 50,000 new containers, and not among what is loaded for good: a page holds
    thousands of tuples, which are freed without it (measured: 7 % of a relay's time). A threshold that somebody has
    chosen stays."""
    if gc.get_threshold()[0] in _PYTHONS_THRESHOLDS:
        gc.set_threshold(_THRESHOLD)
        gc.collect()
        gc.freeze()


async def supervise(work: Callable[[asyncio.Event], Awaitable[None]], *, stop_timeout_s: float) -> None:
    """Run ``work(stop)``; the first SIGTERM or SIGINT sets ``stop``, the second cancels it. What
    comes within ``DEBOUNCE_S`` of a signal is the same one.

    Work that did not end ``stop_timeout_s`` seconds after the first signal is cancelled too. Returns when the work
    returned; raises what it raises, or ``StoppedError`` if it was cut short (exit code 128 + signal, as a shell says,
    or 1 after the time-out). After the second signal the system's own handlers are back: a third one kills.
    """
    calm_collector()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task: asyncio.Future[None] = asyncio.ensure_future(work(stop))
    cut_short: list[StoppedError] = []
    last_at = -DEBOUNCE_S

    def cut(reason: str, exit_code: int) -> None:
        log.warning("%s: leaving now. What was in flight is handed over again, with the same ids", reason)
        cut_short.append(StoppedError(f"{reason}, so it left before everything in flight was finished", exit_code))
        task.cancel()

    def on_timeout() -> None:
        if not task.done() and not cut_short:
            cut(f"not finished after {stop_timeout_s:.0f} s of stopping", 1)

    def on_signal(number: signal.Signals) -> None:
        nonlocal last_at
        if loop.time() - last_at < DEBOUNCE_S:
            return
        last_at = loop.time()
        if not stop.is_set():
            log.info(
                "%s: finishing what is in flight, %.0f s at most. A second signal leaves at once",
                number.name,
                stop_timeout_s,
            )
            stop.set()
            loop.call_later(stop_timeout_s, on_timeout)
            return
        loop.call_later(DEBOUNCE_S, _restore, loop)
        cut(f"a second signal came ({number.name})", 128 + number)

    with _handled(loop, on_signal):
        try:
            await task
        except asyncio.CancelledError:
            if cut_short:
                raise cut_short[0] from None
            task.cancel()
            raise


@contextlib.contextmanager
def _handled(loop: asyncio.AbstractEventLoop, on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    for number in SIGNALS:
        loop.add_signal_handler(number, partial(on_signal, number))
    try:
        yield
    finally:
        _restore(loop)


def _restore(loop: asyncio.AbstractEventLoop) -> None:
    for number in SIGNALS:
        loop.remove_signal_handler(number)
