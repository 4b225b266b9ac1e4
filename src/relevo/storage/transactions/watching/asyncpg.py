"""asyncpg passes every statement through ``_get_statement`` or ``execute``."""

from __future__ import annotations

from functools import cache
from typing import Any

from relevo.storage.transactions.watching.watch import Watch


class AsyncpgWatch:
    """On asyncpg's ``Connection``, or the one behind a pool's proxy. ``may_close``: closing it passes, as SQLAlchemy
    does with a connection whose statement was cancelled. The server rolls back then."""

    def __init__(self, connection: Any, watch: Watch, *, may_close: bool = False) -> None:
        self.watch = watch
        self._connection = getattr(connection, "_con", connection)
        self._may_close = may_close
        self._base: type | None = None

    def put_on(self) -> None:
        connection = self._connection
        if connection is not None and self._base is None:
            base: Any = type(connection)
            self._base = base
            _watches[id(connection)] = self.watch
            connection.__class__ = _watched(base, self._may_close)

    def holds(self) -> bool:
        return True

    def lift(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            self._connection.__class__ = base
            _watches.pop(id(self._connection), None)


_watches: dict[int, Watch] = {}
"""asyncpg's connections have slots, so what belongs to one while it is watched is kept here, by its id."""


@cache
def _watched(base: Any, may_close: bool) -> type:
    class Watched(base):  # type: ignore[misc]
        __slots__ = ()

        async def execute(self, query: str, *arguments: Any, timeout: float | None = None) -> Any:
            _watches[id(self)].look(query)
            return await base.execute(self, query, *arguments, timeout=timeout)

        async def _get_statement(self, query: str, *arguments: Any, **options: Any) -> Any:
            _watches[id(self)].look(query)
            return await base._get_statement(self, query, *arguments, **options)

        async def set_type_codec(self, *arguments: Any, **options: Any) -> None:
            _watches[id(self)].keep()
            await base.set_type_codec(self, *arguments, **options)

        async def set_builtin_type_codec(self, *arguments: Any, **options: Any) -> None:
            _watches[id(self)].keep()
            await base.set_builtin_type_codec(self, *arguments, **options)

        async def reset_type_codec(self, *arguments: Any, **options: Any) -> None:
            _watches[id(self)].keep()
            await base.reset_type_codec(self, *arguments, **options)

        async def close(self, *, timeout: float | None = None) -> None:
            if not may_close:
                _watches[id(self)].refuse()
            await base.close(self, timeout=timeout)

        async def reset(self, *, timeout: float | None = None) -> None:
            _watches[id(self)].refuse()

    Watched.__name__, Watched.__qualname__, Watched.__module__ = base.__name__, base.__qualname__, base.__module__
    return Watched
