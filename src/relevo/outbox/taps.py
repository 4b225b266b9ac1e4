"""Listening to what is added in this process; ``relevo.testing.captured`` is made of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from relevo.message import Message

Tap = Callable[[Sequence[Message], Sequence[object]], bool]
"""Gets the messages and the data they were made of (``None`` for raw ones); returns whether they are to be written."""

_lock = threading.Lock()
_taps: tuple[Tap, ...] = ()


def push(tap: Tap) -> None:
    global _taps
    with _lock:
        _taps = (*_taps, tap)


def remove(tap: Tap) -> None:
    global _taps
    with _lock:
        _taps = tuple(each for each in _taps if each is not tap)


def tell(messages: Sequence[Message], data: Sequence[object]) -> bool:
    """Tell every tap; whether all of them let the messages through to the database."""
    through = True
    for tap in _taps:
        through = tap(messages, data) and through
    return through
