"""asyncpg: ``Connection``, and the proxy a pool hands out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from relevo.catalog import numbered
from relevo.ports.database import Dialect
from relevo.script import Rows
from relevo.storage.handles.adapt import to_plain
from relevo.storage.handles.base import CallerHandle

if TYPE_CHECKING:
    from asyncpg import Connection

_text = cache(numbered)


@cache
def _record() -> Any:
    from asyncpg import Record

    return Record


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
        """As ``fetch``, which asyncpg would do with the codecs and the record class that the application chose."""
        text, names = _text(sql)
        raw: Any = getattr(self._connection, "_con", None) or self._connection
        values = tuple([to_plain(params[name]) for name in names])
        if not hasattr(raw, "_execute"):  # what stands in for a connection in a test of the application's
            rows = await raw.fetch(text, *values)
        else:
            raw._check_open()
            rows = await raw._execute(text, values, 0, None, ignore_custom_codec=True, record_class=_record())
        return [tuple(row) for row in rows]
