"""A session whose work goes over one connection: the one that holds the inbox row.

Sessions choose a connection for each statement (``binds=``, a ``get_bind`` of the application's, ``bind_arguments``).
Work that went over another connection would be committed apart from the inbox row, or not at all. So a session that a
handler gets is asked as before, and its choice must lead to the same engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relevo.errors import ConfigError, MisuseError

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

_WHAT_TO_DO = (
    "Give Consumer(tx=…) a sessionmaker of its own that is bound to one engine, without binds= for other engines and "
    "without a get_bind() that routes (reads to a replica, tenants or shards to other databases)"
)


def pin(session: Session, connection: Connection) -> None:
    """From here on all of the session's work goes over ``connection``; ``MisuseError`` for what chose another one."""
    choose = session.get_bind

    def get_bind(*arguments: Any, **options: Any) -> Connection:
        found = choose(*arguments, **options)
        if not _leads_to(found, connection):
            raise MisuseError(
                f"the session of this handler sends {_named(arguments, options)} over another connection than the one "
                f"that holds the inbox row: the two would not commit together. {_WHAT_TO_DO}"
            )
        return connection

    session.get_bind = get_bind  # type: ignore[method-assign]


def prove(session: Session, connection: Connection) -> None:
    """Raise ``ConfigError`` for a session, not pinned yet, of which some work would go over another connection, or
    whose transaction ends in a way of its own."""
    if session.twophase:
        raise ConfigError(
            "Consumer(tx=…) makes sessions with two-phase commit (twophase=True): a transaction shared with the inbox "
            "row is committed in one. Give it a sessionmaker without twophase"
        )
    flushing = session._flushing
    try:
        for session._flushing in (False, True):  # what the recipe for routing reads and writes asks
            for options in _questions():
                found = _answer(session, options)
                if found is not None and not _leads_to(found, connection):
                    raise ConfigError(
                        f"Consumer(tx=…) makes sessions that send {_named((), options)} over another connection than "
                        f"the one that holds the inbox row: the two would not commit together. {_WHAT_TO_DO}"
                    )
    finally:
        session._flushing = flushing


def _questions() -> Iterator[dict[str, Any]]:
    """What a session is asked for: nothing in particular, each mapped class, each kind of statement."""
    from sqlalchemy import delete, insert, select, update
    from sqlalchemy.orm import configure_mappers
    from sqlalchemy.orm.mapper import _all_registries

    yield {}
    with suppress(Exception):  # a mapping that cannot be completed says so where it is used
        configure_mappers()
    for registry in list(_all_registries()):
        for mapper in list(registry.mappers):
            yield {"mapper": mapper}
            yield {"clause": mapper.local_table}
            for make in (select, insert, update, delete):
                with suppress(Exception):  # not every mapping can be written to
                    yield {"mapper": mapper, "clause": make(mapper)}


def _answer(session: Session, options: dict[str, Any]) -> Any:
    try:
        return session.get_bind(**options)
    except Exception:  # noqa: BLE001 - it needs something that is there at run time only, and is asked again then
        return None


def _leads_to(found: Any, connection: Connection) -> bool:
    """Whether ``found`` is the connection, or an engine with the same pool and options."""
    if found is connection:
        return True
    pool, ours = getattr(found, "pool", None), connection.engine
    return pool is not None and pool is ours.pool and found.get_execution_options() == ours.get_execution_options()


def _named(arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    mapper = options.get("mapper") or (arguments[0] if arguments else None)
    name = getattr(getattr(mapper, "class_", mapper), "__name__", None)
    return f"the work of {name}" if name else "some of its statements"
