"""SQLAlchemy events on the caller's session or connection: registered once for each, gone with it.

They refuse a commit while an ``outbox.add()`` is un-awaited, and say when a commit happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from relevo.errors import ForgottenAwaitError
from relevo.storage.handles.base import Site

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, SessionTransaction


@dataclass(slots=True)
class Hooks:
    """``open``: appends asked for in this transaction. ``callback``: to call after its commit."""

    open: list[Site] = field(default_factory=list)
    callback: Callable[[], None] | None = None
    refuses: bool = False
    """Listens to what comes before a session's commit."""

    def refuse(self) -> None:
        forgotten = [site for site in self.open if not site.awaited]
        if forgotten:
            raise ForgottenAwaitError(
                f"the commit is refused: {', '.join(map(str, forgotten))} was not awaited, so its event would be lost. "
                "Write `await outbox.add(...)`"
            )

    def committed(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    def ended(self) -> None:
        self.open.clear()
        self.callback = None


_sessions: WeakKeyDictionary[Session, Hooks] = WeakKeyDictionary()
_connections: WeakKeyDictionary[Connection, Hooks] = WeakKeyDictionary()


def of_session(session: Session) -> Hooks:
    """The hooks of one sync session. A session belongs to one thread or task, so there is nothing to lock."""
    found = _sessions.get(session)
    if found is None:
        from sqlalchemy import event

        found = _sessions[session] = Hooks()
        event.listen(session, "after_commit", _after_commit)
        event.listen(session, "after_transaction_end", _after_end)
    return found


def watch_forgotten(session: Session, site: Site) -> None:
    """Refuse the session's commit while ``site`` is not awaited. Listened to only where something can be forgotten: an
    append inside an application's own listener must not add one to those that are just being called."""
    found = of_session(session)
    found.open.append(site)
    if not found.refuses:
        from sqlalchemy import event

        found.refuses = True
        event.listen(session, "before_commit", _before_commit)


def refuse_forgotten(session: Session) -> None:
    """Raise ``ForgottenAwaitError`` as its commit would."""
    found = _sessions.get(session)
    if found is not None:
        found.refuse()


def _before_commit(session: Session) -> None:
    _sessions[session].refuse()


def _after_commit(session: Session) -> None:
    if not session.in_nested_transaction():  # a savepoint released shows nothing to others
        _sessions[session].committed()


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _sessions[session].ended()


def of_connection(connection: Connection) -> Hooks:
    """The hooks of one sync connection."""
    found = _connections.get(connection)
    if found is None:
        from sqlalchemy import event

        found = _connections[connection] = Hooks()
        event.listen(connection, "commit", _on_commit)
        event.listen(connection, "rollback", _on_rollback)
    return found


def _on_commit(connection: Connection) -> None:
    """Runs just before the driver commits. A refused commit must not leave the work in an open transaction that some
    later commit would carry, so it is rolled back as a commit that failed would be."""
    hooks = _connections[connection]
    try:
        hooks.refuse()
    except ForgottenAwaitError:
        hooks.ended()
        connection.connection.rollback()
        raise
    hooks.committed()
    hooks.ended()


def _on_rollback(connection: Connection) -> None:
    _connections[connection].ended()
