"""Beginning and ending a SQLAlchemy transaction, for one session or for several that share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relevo.errors import ConfigError
from relevo.storage.handles import hooks
from relevo.storage.handles.sqlalchemy import driver_commits
from relevo.storage.transactions.base import AUTOCOMMIT
from relevo.storage.transactions.pinning import pin, prove
from relevo.storage.transactions.status import half_read

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


ENDING = ("commit", "rollback", "close", "reset", "invalidate", "begin")
"""Methods of a session that raise while a handler runs. ``begin``: it has begun, and its end would be a commit."""


def begin_on(connection: Connection) -> None:
    """Begin; on SQLite with the write lock taken at once, whatever the engine's events do, so that no statement fails
    half way because another connection wrote meanwhile. Raises ``ConfigError`` where the driver commits by itself."""
    connection.begin()
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("begin immediate")
        elif getattr(getattr(driver, "_conn", driver), "autocommit", False) is True:
            raise ConfigError(AUTOCOMMIT)  # its commit() does nothing
    if driver_commits(connection):
        raise ConfigError(AUTOCOMMIT)


def opened(make_session: Callable[..., Any], bind: object, connection: Connection, many: bool) -> Any:
    """A session on ``connection`` for a handler, begun. ``bind``: the connection, or its asynchronous form."""
    session = make_session(bind=bind, join_transaction_mode=mode(many))
    inner: Session = getattr(session, "sync_session", session)
    pin(inner, connection)
    inner.begin()
    return session


def prove_on(make_session: Callable[..., Any], bind: object, connection: Connection) -> None:
    """Raise ``ConfigError`` where what ``make_session`` makes would not work over ``connection`` alone."""
    session = make_session(bind=bind)
    prove(getattr(session, "sync_session", session), connection)


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
        if half_read(connection.connection.driver_connection):
            connection.invalidate()  # a ROLLBACK would wait for what nobody reads
        if sessions and not many:
            sessions[0].rollback()
        connection.rollback()
        for session in sessions if many else ():
            session.dispatch.after_rollback(session)
    except Exception:  # noqa: BLE001 - see above
        connection.invalidate()
