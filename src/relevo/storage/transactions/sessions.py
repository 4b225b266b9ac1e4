"""Beginning and ending a SQLAlchemy transaction, for one session or for several that share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from relevo.storage.handles import hooks

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


def begin_on(connection: Connection) -> None:
    """Begin; on SQLite with the write lock taken at once, whatever the engine's events do, so that no statement fails
    half way because somebody else wrote meanwhile."""
    connection.begin()
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("begin immediate")


def mode(many: bool) -> str:
    """Whether a session commits the transaction it joined. Of several none does; a rollback of one is one of all."""
    return "rollback_only" if many else "control_fully"


def flush(session: Session, many: bool = False) -> None:
    """Send what is pending; an ``outbox.add`` that was never awaited raises here, as it would at a commit. ``many``:
    what the application does before a commit must happen now, since this session will not commit itself."""
    hooks.refuse_forgotten(session)
    if many:
        session.dispatch.before_commit(session)
    session.flush()


def close(_: Session, sessions: Sequence[Session]) -> None:
    for session in sessions:
        session.close()


def commit(connection: Connection, sessions: Sequence[Session], many: bool) -> None:
    """Commit; afterwards whoever listens to a session's commit is told, as if it had committed itself."""
    if sessions and not many:
        sessions[0].commit()
        return
    connection.commit()
    for session in sessions:
        session.dispatch.after_commit(session)


def undo(connection: Connection, sessions: Sequence[Session], many: bool) -> None:
    """Roll back; a connection on which that fails is thrown away, and the server rolls back."""
    try:
        if sessions and not many:
            sessions[0].rollback()
        connection.rollback()
        for session in sessions if many else ():
            session.dispatch.after_rollback(session)
    except Exception:  # noqa: BLE001 - see above
        connection.invalidate()
