"""psycopg passes every statement through its manager of prepared statements, but those of client-side cursors."""

from __future__ import annotations

from functools import cache
from typing import Any

from relevo.storage.transactions.statements import what_it_does
from relevo.storage.transactions.watching.choices import Choices
from relevo.storage.transactions.watching.watch import NOTHING, Watch

METHODS = ("commit", "rollback", "close")


class PsycopgWatch:
    """On ``Connection`` or ``AsyncConnection``; ``methods`` of it raise meanwhile."""

    def __init__(self, connection: Any, watch: Watch, methods: tuple[str, ...] = METHODS) -> None:
        self.watch = watch
        self._connection = connection
        self._methods = methods
        self._choices: Choices | None = None
        """While it is on."""

    def put_on(self) -> None:
        connection, look, judge = self._connection, self.watch.look, self.watch.judge
        choices = Choices(connection)
        own, prepared = vars(connection), connection._prepared
        kind: Any = type(connection)
        replacement = self.watch.arefuse if _is_async(kind) else self.watch.refuse
        for name in self._methods:
            own[name] = replacement
        get, execute = prepared.get, connection._exec_command
        may_begin = not connection.pgconn.transaction_status  # nothing was sent yet: the driver begins by itself, once

        def watched_get(query: Any, prepare: bool | None = None) -> Any:
            does = what_it_does(query.query)
            if does is not NOTHING:
                judge(does, query.query)
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
        choices.note()
        self._choices = choices

    def note(self) -> None:
        """The connection's attributes as they are now are those that every handler finds."""
        if self._choices is not None:
            self._choices.note()

    def take_back(self) -> None:
        """How a handler chose to write and read: it holds for no other."""
        if self._choices is not None:
            self._choices.take_back()

    def holds(self) -> bool:
        return True

    def lift(self) -> None:
        choices, self._choices = self._choices, None
        if choices is not None:
            own = vars(self._connection)
            for name in (*self._methods, "_exec_command", _LOOK):
                own.pop(name, None)
            vars(self._connection._prepared).pop("get", None)
            choices.end()


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


@cache
def _is_async(kind: Any) -> bool:
    return any(base.__qualname__ == "AsyncConnection" for base in kind.__mro__)
