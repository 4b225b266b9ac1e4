"""What an application, and so a handler, sets on a psycopg connection object: how its statements are made and read."""

from __future__ import annotations

from operator import is_
from typing import Any, Final

_FACTORIES: Final = ("row_factory", "cursor_factory", "server_cursor_factory")
"""Attributes that hold for all statements which follow."""
_KEPT: Final = "relevo_adapters"


class Choices:
    """As they were, and as a handler finds them. Registering an adapter changes a map of them in place, so a handler
    gets a copy of the map: one for each connection, and a new one only where an adapter was registered."""

    __slots__ = ("_adapters", "_before", "_chosen", "_given", "_own", "_prepared", "_tables", "_threshold")

    def __init__(self, connection: Any) -> None:
        own = vars(connection)
        self._own, self._prepared = own, connection._prepared
        self._before = self._chosen = _factories(own)
        self._threshold = self._prepared.prepare_threshold
        self._adapters = self._given = own.get("_adapters")
        self._tables: tuple[object, ...] = ()
        if self._adapters is not None:
            kept = own.get(_KEPT)
            if kept is None or kept[0] is not self._adapters or not (_has(kept[0], kept[2]) and _has(kept[1], kept[2])):
                kept = self._copied()
            _, self._given, self._tables = kept
            own["_adapters"] = self._given

    def note(self) -> None:
        """The factories as they are now are those that every handler finds."""
        self._chosen = _factories(self._own)

    def take_back(self) -> None:
        """What a handler chose holds for no other. Called after each handler, so what is unchanged costs little."""
        own, (row, cursor, server_cursor) = self._own, self._chosen
        get = own.get  # by identity: what a handler sets may be anything
        if (
            get("row_factory", _NONE) is not row
            or get("cursor_factory", _NONE) is not cursor
            or get("server_cursor_factory", _NONE) is not server_cursor
        ):
            self._restore(self._chosen)
        now = get("_adapters")
        if now is not self._given or (now is not None and not _has(now, self._tables)):
            self._take_adapters_back()
        if self._prepared.prepare_threshold is not self._threshold:
            self._prepared.prepare_threshold = self._threshold

    def end(self) -> None:
        """All as it was before."""
        self.take_back()
        self._restore(self._before)
        if self._adapters is not None:
            self._own["_adapters"] = self._adapters

    def _take_adapters_back(self) -> None:
        if self._adapters is not None:
            _, self._given, self._tables = self._copied()
        self._own["_adapters"] = self._given  # None: psycopg makes a map when it is first used

    def _copied(self) -> tuple[Any, Any, tuple[object, ...]]:
        adapters = self._adapters
        kept = self._own[_KEPT] = adapters, type(adapters)(adapters), _tables(adapters)
        return kept

    def _restore(self, values: tuple[Any, ...]) -> None:
        for name, value in zip(_FACTORIES, values, strict=True):
            if value is _NONE:
                self._own.pop(name, None)
            else:
                self._own[name] = value


_NONE: Final = object()


def _factories(own: dict[str, Any]) -> tuple[Any, Any, Any]:
    """In the order of ``_FACTORIES``."""
    row, cursor, server_cursor = (own.get(name, _NONE) for name in _FACTORIES)
    return row, cursor, server_cursor


def _tables(adapters: Any) -> tuple[object, ...]:
    """The tables of a map of adapters. Maps share them, and psycopg makes a copy of one before it writes there."""
    try:
        dumpers, by_oid, loaders = adapters._dumpers, adapters._dumpers_by_oid, adapters._loaders
        return (*dumpers.values(), *by_oid, *loaders, adapters.types._registry)
    except AttributeError:
        return (object(),)  # another version of psycopg: like no other


def _has(adapters: Any, tables: tuple[object, ...]) -> bool:
    """Whether nothing was registered since ``adapters`` had these ``tables``."""
    return all(map(is_, _tables(adapters), tables))
