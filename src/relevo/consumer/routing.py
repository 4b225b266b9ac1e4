"""Routing: exactly one handler per message. The exact type wins over patterns; ambiguity is refused at the start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from relevo.consumer.handlers import Handler
from relevo.errors import ConfigError

_WILD = "*"


def is_pattern(selector: str) -> bool:
    return _WILD in selector


class Routes:
    """The handlers of one consumer, ready to look up. Immutable; ``find`` costs one dictionary look-up."""

    def __init__(self, consumer: str, handlers: Iterable[Handler], skip_types: Sequence[str]) -> None:
        self._consumer = consumer
        self._exact: dict[str, Handler] = {}
        self._patterns: list[Handler] = []
        self._skipped = tuple(skip_types)
        for handler in handlers:
            if is_pattern(handler.selector):
                self._refuse_overlap(handler)
                self._patterns.append(handler)
                continue
            other = self._exact.setdefault(handler.selector, handler)
            if other is not handler:
                raise ConfigError(
                    f"consumer {consumer!r} has two handlers for {handler.selector!r}: {other.name} and {handler.name}"
                    ". Exactly one handles a message: give the second to a consumer of its own"
                )
        self.find = lru_cache(maxsize=4096)(self._find)

    def _find(self, type_name: str) -> Handler | None:
        """The handler for a type, or ``None``."""
        exact = self._exact.get(type_name)
        if exact is not None:
            return exact
        for handler in self._patterns:
            if fnmatchcase(type_name, handler.selector):
                return handler
        return None

    def skips(self, type_name: str) -> bool:
        """Whether the consumer said that it does not care for this type."""
        return any(fnmatchcase(type_name, pattern) for pattern in self._skipped)

    def _refuse_overlap(self, handler: Handler) -> None:
        for other in self._patterns:
            if overlap(handler.selector, other.selector):
                raise ConfigError(
                    f"consumer {self._consumer!r}: some type would match both {other.selector!r} ({other.name}) and "
                    f"{handler.selector!r} ({handler.name}). Make the patterns disjoint"
                )


def overlap(first: str, second: str) -> bool:
    """Whether some text matches both patterns (``*`` stands for any text, also none).

    Walks both at once; a star may swallow a character of the other side or end.
    """
    if first.count(_WILD) and set("?[]") & set(first + second):
        raise ConfigError(f"patterns know only *, not ? or []: {first!r}, {second!r}")
    seen: set[tuple[int, int]] = set()
    todo = [(0, 0)]
    while todo:
        i, j = todo.pop()
        if (i, j) in seen:
            continue
        seen.add((i, j))
        if i == len(first) and j == len(second):
            return True
        a = first[i] if i < len(first) else ""
        b = second[j] if j < len(second) else ""
        if a == _WILD:
            todo.append((i + 1, j))
            if b:
                todo.append((i, j + 1))
        if b == _WILD:
            todo.append((i, j + 1))
            if a:
                todo.append((i + 1, j))
        if a and a == b and a != _WILD:
            todo.append((i + 1, j + 1))
    return False
