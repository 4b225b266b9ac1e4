"""Watches what a handler does with the driver's connection below its ``tx``, whichever way it reaches it.

A statement that would end the transaction is refused before it is sent, so that nothing of it is committed. Each driver
has one place that every statement passes: psycopg's manager of prepared statements, asyncpg's ``_get_statement`` and
``execute``, SQLite's authorizer. psycopg's and asyncpg's are not public; tests say when they have changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Protocol

from relevo.errors import MisuseError
from relevo.storage.transactions.base import MISUSE, StateError
from relevo.storage.transactions.statements import Does, what_it_does

METHODS = ("commit", "rollback", "close")


class Watch:
    """What was seen since ``put_on``. ``ended``: the transaction was ended, or that was tried. ``rolled_back``: a
    ROLLBACK passed. ``sets``: state was set in a transaction of several handlers. ``lasts``: state was set that
    outlives the transaction."""

    def __init__(self, *, many: bool, may_roll_back: bool = False) -> None:
        """``many``: several handlers share the transaction. ``may_roll_back``: a ROLLBACK passes, and is remembered."""
        self.many = many
        self.may_roll_back = may_roll_back
        self.ended = False
        self.rolled_back = False
        self.sets = False
        self.lasts = False

    def look(self, query: str | bytes) -> None:
        """Raise for what may not be sent: ``MisuseError``, or ``StateError`` for a handler that has to run alone."""
        does = what_it_does(query)
        if does:
            self._judge(does, query)

    def _judge(self, does: Does, query: str | bytes) -> None:
        if does & Does.LASTS:
            self.lasts = True
        if does & Does.ENDS:
            if self.may_roll_back and query in _ROLLBACKS:
                self.rolled_back = True
                return
            self.ended = True
            raise MisuseError(MISUSE)
        if does & Does.SETS and self.many:
            self.sets = True
            raise StateError

    def refuse(self, *_: object, **__: object) -> Any:
        self.ended = True
        raise MisuseError(MISUSE)

    async def arefuse(self, *_: object, **__: object) -> Any:
        self.refuse()

    def check(self) -> None:
        """Raise what was raised before, also where the handler caught it."""
        if self.ended or self.rolled_back:
            raise MisuseError(MISUSE)
        if self.sets:
            raise StateError


_ROLLBACKS = ("ROLLBACK", "ROLLBACK;", b"ROLLBACK")  # as the drivers write it


class DriverWatch(Protocol):
    """A ``Watch`` on one connection."""

    @property
    def watch(self) -> Watch: ...

    def put_on(self) -> None: ...

    def lift(self) -> None: ...  # the connection is as before; may be called twice


class PsycopgWatch:
    """On ``Connection`` or ``AsyncConnection``; ``methods`` of it raise meanwhile."""

    def __init__(self, connection: Any, watch: Watch, methods: tuple[str, ...] = METHODS) -> None:
        self.watch = watch
        self._connection = connection
        self._methods = methods
        self._is_on = False

    def put_on(self) -> None:
        connection, look = self._connection, self.watch.look
        own, prepared = vars(connection), connection._prepared
        kind: Any = type(connection)
        replacement = self.watch.arefuse if _is_async(kind) else self.watch.refuse
        for name in self._methods:
            own[name] = replacement
        get, execute = prepared.get, connection._exec_command
        may_begin = not connection.pgconn.transaction_status  # nothing was sent yet: the driver begins by itself, once

        def watched_get(query: Any, prepare: bool | None = None) -> Any:
            look(query.query)
            return get(query, prepare)

        def watched_command(command: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal may_begin
            if may_begin and command == connection._get_tx_start_command():
                may_begin = False
                return execute(command, *arguments, **options)
            look(command if isinstance(command, (str, bytes)) else command.as_bytes(connection))
            return execute(command, *arguments, **options)

        prepared.get = watched_get
        own["_exec_command"] = watched_command
        own[_LOOK] = look
        if not hasattr(connection.cursor_factory, "relevo_plain") and _is_client(connection.cursor_factory):
            connection.cursor_factory = _looking(connection.cursor_factory)
        self._is_on = True

    def lift(self) -> None:
        if self._is_on:
            self._is_on = False
            own = vars(self._connection)
            for name in (*self._methods, "_exec_command", _LOOK):
                own.pop(name, None)
            vars(self._connection._prepared).pop("get", None)
            plain = getattr(self._connection.cursor_factory, "relevo_plain", None)
            if plain is not None:
                self._connection.cursor_factory = plain


_LOOK = "relevo_look"


@cache
def _is_client(factory: Any) -> bool:
    return any(base.__qualname__ == "ClientCursorMixin" for base in factory.__mro__)


@cache
def _looking(base: Any) -> Any:
    """Client-side cursors prepare nothing, and so do not ask the manager of prepared statements."""

    class Looking(base):  # type: ignore[misc]
        relevo_plain = base

        def _get_prepared(self, query: Any, prepare: bool | None = None) -> Any:
            look = vars(self._conn).get(_LOOK)
            if look is not None:
                look(query.query)
            return super()._get_prepared(query, prepare)

    Looking.__name__ = base.__name__
    return Looking


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

        async def close(self, *, timeout: float | None = None) -> None:
            if not may_close:
                _watches[id(self)].refuse()
            await base.close(self, timeout=timeout)

        async def reset(self, *, timeout: float | None = None) -> None:
            _watches[id(self)].refuse()

    Watched.__name__, Watched.__qualname__, Watched.__module__ = base.__name__, base.__qualname__, base.__module__
    return Watched


_LOOKS: Final = frozenset(
    (
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"),
        *("foreign_key_check", "integrity_check", "quick_check", "optimize", "wal_checkpoint", "incremental_vacuum"),
    )
)
"""Pragmas whose argument sets nothing."""


class SqliteWatch:
    """On ``sqlite3.Connection``: its authorizer refuses ``BEGIN`` and ``COMMIT``, as methods and as SQL alike, and
    ``ROLLBACK`` unless it may pass, and sees a ``PRAGMA`` that sets something. It replaces the application's. ``ours``:
    Relevo opened the connection, so that it has no callbacks but a handler's."""

    def __init__(self, connection: sqlite3.Connection, watch: Watch, *, ours: bool = False) -> None:
        self.watch = watch
        self._connection = connection
        self._ours = ours
        self._factories = connection.row_factory, connection.text_factory
        self._is_on = False

    def put_on(self) -> None:
        self._connection.set_authorizer(self._authorize)
        self._is_on = True

    def holds(self) -> bool:
        """Whether the authorizer is still this one. A handler that removed it may have ended the transaction and begun
        another; nothing else shows that."""
        ended = self.watch.ended
        try:
            self._connection.execute("begin")
        except sqlite3.DatabaseError as error:  # operational: there is a transaction, and nothing refused another
            ended = ended or isinstance(error, sqlite3.ProgrammingError)  # closed
            return not isinstance(error, sqlite3.OperationalError)
        finally:
            self.watch.ended = ended
        self._connection.execute("rollback")
        return False

    def take_back(self, *, last: bool = False) -> None:
        """What the handler set on the connection object; ``last``: the authorizer too."""
        connection = self._connection
        connection.row_factory, connection.text_factory = self._factories
        try:
            if self._ours:
                connection.set_progress_handler(None, 0)
                connection.set_trace_callback(None)
            if last:
                connection.set_authorizer(None)
        except sqlite3.ProgrammingError:  # closed
            self.watch.ended = True

    def lift(self) -> None:
        if self._is_on:
            self._is_on = False
            self.take_back(last=True)

    def _authorize(self, action: int, operation: str | None, value: str | None, *_: object) -> int:
        if action != sqlite3.SQLITE_TRANSACTION:
            if action == sqlite3.SQLITE_PRAGMA and value is not None and operation not in _LOOKS:
                self.watch.lasts = True
                self.watch.sets = self.watch.many
            return sqlite3.SQLITE_OK
        if self.watch.may_roll_back and operation == "ROLLBACK":
            self.watch.rolled_back = True
            return sqlite3.SQLITE_OK
        self.watch.ended = True
        return sqlite3.SQLITE_DENY


def driver_watch(driver_connection: Any, watch: Watch) -> DriverWatch | None:
    """The one for a connection below SQLAlchemy's, whose own methods are watched there. ``None``: an unknown driver."""
    for base in type(driver_connection).__mro__:
        make = _BY_PACKAGE.get((base.__module__.partition(".")[0], base.__qualname__))
        if make is not None:
            return make(driver_connection, watch)
    return None


_BY_PACKAGE: dict[tuple[str, str], Callable[[Any, Watch], DriverWatch]] = {
    ("psycopg", "Connection"): lambda connection, watch: PsycopgWatch(connection, watch, ("commit",)),
    ("psycopg", "AsyncConnection"): lambda connection, watch: PsycopgWatch(connection, watch, ("commit",)),
    ("asyncpg", "Connection"): lambda connection, watch: AsyncpgWatch(connection, watch, may_close=True),
    ("sqlite3", "Connection"): SqliteWatch,
}


@cache
def _is_async(kind: Any) -> bool:
    return any(base.__qualname__ == "AsyncConnection" for base in kind.__mro__)
