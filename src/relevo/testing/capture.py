"""Seeing what was added, in a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relevo.message import Message
from relevo.outbox import pending, taps
from relevo.storage.handles import Site


@dataclass(frozen=True, slots=True)
class Captured:
    """One message as it was added. ``data``: the object given to ``add``; ``None`` for ``add_message``."""

    message: Message
    data: Any


@contextmanager
def captured(*, write: bool = True) -> Iterator[list[Captured]]:
    """A list that fills with what any ``Outbox`` of this process, in any thread, adds inside the ``with``.

    ``write=False`` keeps it from the database; sessions and connections may then be unconnected ones. What is listed
    was added, in this order; whether it was committed is the transaction's matter.
    """
    found: list[Captured] = []

    def tap(messages: Sequence[Message], data: Sequence[object]) -> bool:
        found.extend(Captured(message, each) for message, each in zip(messages, data, strict=True))
        return write

    taps.push(tap)
    try:
        yield found
    finally:
        taps.remove(tap)


@contextmanager
def expect_forgotten() -> Iterator[list[Site]]:
    """For a test that forgets an ``await`` on purpose: the list fills, on leaving, with the appends that were asked for
    inside and not awaited, and the pytest plugin does not fail the test for them."""
    before = pending.unawaited()
    found: list[Site] = []
    try:
        yield found
    finally:
        found.extend(site for site in pending.unawaited() if site not in before)
        pending.forget(found)
