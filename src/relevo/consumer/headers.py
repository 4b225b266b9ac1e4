"""A message's headers as its handler sees them: a copy, which cannot be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class Headers(dict[str, str]):
    """A ``dict``, for ``json.dumps`` and ``pickle`` as for others; ``dict(headers)`` makes one to change."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the headers of an event cannot be changed: make a dict of them first, dict(event.headers)")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[type[Headers], tuple[dict[str, str]]]:
        return Headers, (dict(self),)

    def __copy__(self) -> Headers:
        return self

    def __deepcopy__(self, _: Any) -> Headers:
        return self


def headers_of(given: Mapping[str, str]) -> Headers:
    """A copy of its own for each event, also where there are none."""
    return Headers(given)
