"""Watches connections that are in use, and ends those whose peer does not answer in time.

One timer looks at all of them four times per bound; a round trip costs an assignment. Looks are counted, not seconds:
while this process is frozen, or its loop is busy, no time goes by for its peers, and an answer that has arrived
meanwhile is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from collections.abc import Callable
from typing import Final

LOOKS: Final = 4
EXEMPT: Final = -(10**9)
"""As ``looks``: the connection is used for something that has no bound."""


def _over() -> None:
    """The end of a connection that is given back: there is nothing to end."""


class Watched:
    """A connection in use. Its user sets ``looks`` to 0 before each round trip; ``overdue``: it was ended."""

    __slots__ = ("end", "looks", "looks_max", "overdue")

    def __init__(self, end: Callable[[], None], looks_max: int) -> None:
        self.end = end
        self.looks = 0
        self.looks_max = looks_max
        self.overdue = False

    @property
    def in_exempt(self) -> int:
        """Looks since ``looks`` was set to ``EXEMPT``; 0 unless it was."""
        return max(0, self.looks - EXEMPT) if self.looks < 0 else 0


class Watch:
    """All connections of one owner, on one event loop. ``answer_s``: the bound of a round trip. ``beside``: called with
    each look."""

    def __init__(self, answer_s: float, beside: Callable[[], None] | None = None) -> None:
        self.answer_s = answer_s
        self._beside = beside
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def lend(self, end: Callable[[], None], answer_s: float | None = None) -> Watched:
        """Watch a connection until ``back``. ``end`` closes it from outside, so that a caller that waits sees a
        connection that is lost; it is called again where that did not help. ``answer_s``: where its round trips
        have another bound."""
        looks = LOOKS if answer_s is None else math.ceil(LOOKS * answer_s / self.answer_s)
        watched = Watched(end, looks)
        self._watched.add(watched)
        if self._timer is None:
            self._arm()
        return watched

    def back(self, watched: Watched) -> None:
        self._watched.discard(watched)
        watched.end = _over  # it leads back to its owner, which has it: a cycle that the collector would have to find

    def end_all(self) -> None:
        """End all that are in use: their users were cancelled and have not come back."""
        for watched in tuple(self._watched):
            watched.overdue = True
            watched.end()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.answer_s / LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        for watched in tuple(self._watched):
            watched.looks += 1
            if watched.looks > watched.looks_max and (not watched.overdue or watched.looks > 2 * watched.looks_max):
                watched.overdue = True
                watched.end()
        if self._watched:
            self._arm()
        if self._beside is not None:
            self._beside()


def shut(fileno: int) -> None:
    """End the connection of a socket of any owner, also while a thread waits for it: a read ends, a write fails."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fileno)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
