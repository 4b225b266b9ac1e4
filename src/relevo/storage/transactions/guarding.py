"""Watches one SQLAlchemy connection, and what the handler got on it, while the handler runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relevo.errors import MisuseError
from relevo.storage.transactions.base import MISUSE, NO_WRITE_UNDER_WAY, unread
from relevo.storage.transactions.sessions import ENDING, flush
from relevo.storage.transactions.status import still_open
from relevo.storage.transactions.watching import Watch, driver_watch

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


class Guard:
    """Watches one connection, and what the handler got on it, while the handler runs."""

    def __init__(self, connection: Connection, many: bool) -> None:
        from sqlalchemy import event

        self._connection = connection
        self._event = event
        self._watch = Watch(many=many, may_roll_back=True)
        event.listen(connection, "commit", self._on_commit)
        event.listen(connection, "rollback", self._on_rollback)
        event.listen(connection, "before_cursor_execute", self._on_execute)
        self._driver = driver_watch(connection.connection.driver_connection, self._watch)
        if self._driver is not None:
            self._driver.put_on()
        self._bypassed = False
        self._session: Any = None
        self._begun: object = None

    @property
    def misused(self) -> bool:
        """Whether the handler tried to end the transaction. (What a failed flush rolls back is its own error.)"""
        return self._watch.ended or self._connection.closed

    @property
    def lasts(self) -> bool:
        return self._watch.lasts

    @property
    def bypassed(self) -> bool:
        """See ``Unit``. Asked on the unit's own thread."""
        self._bypassed = self._bypassed or not (self._driver is None or self._driver.holds())
        return self._bypassed

    def watch(self, session: Any) -> None:
        """Of a session that was not used yet no event comes: its methods refuse too."""
        self._session = session
        inner = getattr(session, "sync_session", None)
        self._begun = (inner or session).get_transaction()
        for name in ENDING:
            awaited = inner is not None and name != "begin"
            setattr(session, name, self._watch.arefuse if awaited else self._watch.refuse)

    def let_go(self) -> None:
        """The handler is done with its session."""
        session, self._session = self._session, None
        if session is None:
            return
        for name in ENDING:
            vars(session).pop(name, None)
        if getattr(session, "sync_session", session).get_transaction() is not self._begun:
            self._watch.ended = True

    def lift(self) -> None:
        self.let_go()
        if self._driver is not None:
            self._driver.lift()
        if self._event.contains(self._connection, "commit", self._on_commit):
            self._event.remove(self._connection, "commit", self._on_commit)
            self._event.remove(self._connection, "rollback", self._on_rollback)
            self._event.remove(self._connection, "before_cursor_execute", self._on_execute)

    def check(self) -> None:
        """Raise unless the transaction is the one that began, and can be committed."""
        self.let_go()
        if self._connection.closed:
            raise MisuseError(MISUSE)
        self._watch.check()
        if still_open(self._connection.connection.driver_connection) is None:
            self._connection.exec_driver_sql("select 1")  # an aborted transaction raises here, and not at the commit
        if self._connection.dialect.name == "sqlite":
            try:
                for text in NO_WRITE_UNDER_WAY:
                    self._connection.exec_driver_sql(text)
            except Exception as error:
                raise unread(error) from error

    def _on_commit(self, _: Connection) -> None:
        self._watch.refuse()

    def _on_rollback(self, _: Connection) -> None:
        self._watch.rolled_back = True

    def _on_execute(self, connection: object, cursor: object, statement: str, *_: object) -> None:
        self._watch.look(statement)


def leave(_: Connection, session: Session | None, guard: Guard, many: bool) -> None:
    """The handler has returned: what is pending goes out, and the transaction must be the one that began."""
    guard.let_go()
    if guard.misused:
        raise MisuseError(MISUSE)
    if session is not None:
        flush(session, many)
    guard.check()
