"""asyncpg: ``Connection``, and the proxy a pool hands out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from relevo.catalog import numbered
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.storage.handles.base import CallerHandle

if TYPE_CHECKING:
    from asyncpg import Connection

_text = cache(numbered)


class AsyncpgHandle(CallerHandle):
    """asyncpg commits every statement outside ``connection.transaction()`` by itself, and has no hook on commit."""

    __slots__ = ("_connection",)
    is_async = True

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return "postgresql"

    def commits_by_itself(self) -> bool:
        return not self._connection.is_in_transaction()

    async def aexecute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        text, names = _text(sql)
        return [tuple(row) for row in await self._connection.fetch(text, *(params[name] for name in names))]
