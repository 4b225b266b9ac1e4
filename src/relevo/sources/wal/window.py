"""What was read from the stream and is not settled yet, in stream order. Pure.

The position moves over whole prefixes only: what is done behind something open is remembered here, and read again
after a crash (a duplicate, never a loss).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from relevo.outgoing import Sendable
from relevo.storage.waling import Position


@dataclass(eq=False, slots=True)
class Page:
    """One page as it was read. ``marks``: the position after each message. ``end``: the position after all of them,
    past the commit where that has been seen. ``open``: indexes that are not settled, ascending."""

    seqs: Sequence[int]
    lanes: Sequence[int]
    messages: Sequence[Sendable]
    marks: Sequence[tuple[int, int]]
    unreadable: Mapping[int, str]
    end: Position
    open: Sequence[int]
    flying: bool = False
    more: bool = False
    """More was there when it was read."""


@dataclass
class Window:
    """``passed``: everything up to it is settled. ``reached``: everything that committed before it has been read."""

    passed: Position
    reached: int = 0
    pages: deque[Page] = field(default_factory=deque)

    def add(self, page: Page) -> None:
        self.pages.append(page)

    def waiting(self) -> Page | None:
        """The first page with something open that is not in flight: it goes before anything new."""
        for page in self.pages:
            if not page.flying and page.open:
                return page
        return None

    def settle(self, page: Page, done: Collection[int]) -> None:
        """These indexes of ``page`` are settled."""
        gone = set(done)
        page.open = [] if len(gone) == len(page.open) else [index for index in page.open if index not in gone]
        self.passed = self.position()
        while self.pages and not self.pages[0].open:
            self.pages.popleft()

    def position(self, page: Page | None = None, done: Collection[int] = ()) -> Position:
        """Up to where everything is settled, or would be if ``done`` of ``page`` were settled as well."""
        gone = set(done)
        position = self.passed
        for each in self.pages:
            still = next((i for i in each.open if each is not page or i not in gone), None)
            if still is None:
                position = each.end
                continue
            return Position(*each.marks[still - 1]) if still else position
        return max(position, Position(self.reached))

    def prefix(self, page: Page, done: Collection[int]) -> int:
        """The first index of ``page`` that stays open if ``done`` are settled; its length if none does."""
        gone = set(done)
        return next((index for index in page.open if index not in gone), len(page.seqs))

    def first(self, page: Page) -> bool:
        """Whether nothing before ``page`` is open."""
        for each in self.pages:
            if each is page:
                return True
            if each.open:
                return False
        return True
