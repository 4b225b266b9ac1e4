"""What an application, and so a handler, sets on a psycopg connection object: how its statements are made and read."""

from __future__ import annotations

from typing import Any, Final

_FACTORIES: Final = ("row_factory", "cursor_factory", "server_cursor_factory")
"""Attributes that hold for all statements which follow."""
_KEPT: Final = "relevo_adapters"


class Choices:
    """As they were, and as a handler finds them. Nothing is copied unless somebody registered an adapter: that changes
    a map of adapters in place, which psycopg notes in the map itself."""

    __slots__ = ("_adapters", "_before", "_chosen", "_connection", "_given", "_threshold")

    def __init__(self, connection: Any) -> None:
        own = vars(connection)
        self._connection = connection
        self._before = self._chosen = tuple(own.get(name, _NONE) for name in _FACTORIES)
        self._threshold = connection._prepared.prepare_threshold
        self._adapters = own.get("_adapters")
        self._given = self._adapters
        if self._adapters is not None:
            kept = own.get(_KEPT)
            if kept is None or kept[0] is not self._adapters or changed(kept[0]) or changed(kept[1]):
                kept = own[_KEPT] = self._adapters, _copied(self._adapters)
            self._given = own["_adapters"] = kept[1]

    def note(self) -> None:
        """The factories as they are now are those that every handler finds."""
        own = vars(self._connection)
        self._chosen = tuple(own.get(name, _NONE) for name in _FACTORIES)

    def take_back(self) -> None:
        """What a handler chose holds for no other."""
        own = vars(self._connection)
        self._restore(own, self._chosen)
        now = own.get("_adapters")
        if self._given is None:
            if now is not None and changed(now):  # psycopg made it when it was first used
                own["_adapters"] = None
        elif now is not self._given or changed(self._given):
            self._given = own["_adapters"] = _copied(self._adapters)
            own[_KEPT] = self._adapters, self._given
        if self._connection._prepared.prepare_threshold != self._threshold:
            self._connection._prepared.prepare_threshold = self._threshold

    def end(self) -> None:
        """All as it was before."""
        self.take_back()
        own = vars(self._connection)
        self._restore(own, self._before)
        if self._adapters is not None:
            own["_adapters"] = self._adapters

    @staticmethod
    def _restore(own: dict[str, Any], values: tuple[Any, ...]) -> None:
        for name, value in zip(_FACTORIES, values, strict=True):
            if own.get(name, _NONE) is value:
                continue
            if value is _NONE:
                own.pop(name, None)
            else:
                own[name] = value


_NONE: Final = object()


def changed(adapters: Any) -> bool:
    """Whether an adapter or a type was registered since the map was made, or copied: psycopg copies a table of it when
    it writes there first. Where that is not to be seen, another version of psycopg: yes."""
    try:
        return bool(
            any(adapters._own_dumpers.values())
            or True in adapters._own_dumpers_by_oid
            or True in adapters._own_loaders
            or adapters.types._own_state
        )
    except AttributeError:
        return True


def _copied(adapters: Any) -> Any:
    return type(adapters)(adapters)
