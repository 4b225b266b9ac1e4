"""Where handlers' transactions come from, and one of them: the seam between the consumer and the database libraries."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from relevo.errors import ConfigError, MisuseError, RelevoError
from relevo.ports.database import Dialect
from relevo.script import Rows

MISUSE = (
    "the handler began, committed, rolled back or closed the transaction Relevo gave it (by a method, a statement or a "
    "block such as `with session.begin()`). Relevo commits it together with the inbox row after the handler returns: "
    "put work that may be undone in a savepoint (session.begin_nested(), conn.transaction())"
)


AUTOCOMMIT = (
    "Consumer(tx=…) gives a connection in autocommit mode: each statement of a handler would be committed by itself, "
    "whether or not the handler succeeds. Give it an engine or pool whose connections do not commit by themselves "
    '(without isolation_level="AUTOCOMMIT")'
)
OPEN = (
    "Consumer(tx=…) gives a connection on which a transaction is open already: the inbox row and the handler's work "
    "would end with it. Give out connections that nothing else uses"
)


UNREAD = (
    "the handler left {what} on its transaction's connection, and so the transaction cannot be committed. Read "
    "results to their end, or close what reads them (cursors, stream(), copy(), pipeline(): in a `with` block)"
)
NO_WRITE_UNDER_WAY = ("savepoint relevo_reads", "release savepoint relevo_reads")
"""SQLite refuses a savepoint, and later the COMMIT, while an ``INSERT … RETURNING`` is not read to its end. (One that
only reads is not told.)"""


def unread(what: object) -> MisuseError:
    """For a statement, COPY or pipeline under way when the handler returned."""
    return MisuseError(UNREAD.format(what=f"a statement under way ({what})"))


def wrong_kind(given: object, wanted: str) -> ConfigError:
    """For what ``tx=`` gave in place of a connection of the kind the handlers ask for."""
    kind = type(given)
    return ConfigError(
        f"Consumer(tx=…) gives a {kind.__module__}.{kind.__qualname__}, and its handlers want {wanted}: make it give "
        "connections of that kind only"
    )


def committing(xid: str | None) -> str:
    """``COMMIT``, preceded by the proof that it is the transaction ``xid`` that is committed: a division by zero if it
    is not, and the COMMIT behind it is not executed. One text and one round trip."""
    if xid is None:
        return "commit"
    return f"select 1 / cast(pg_current_xact_id() = '{int(xid)}' as integer); commit"


DIVISION_BY_ZERO = "22012"
IN_FAILED_TRANSACTION = "25P02"


class AbortedTransactionError(RelevoError):
    """The handler caught a database error, and the database had aborted the transaction by then: nothing of it could be
    committed. Put a savepoint (begin_nested(), conn.transaction()) around what may fail."""


class StateError(RelevoError):
    """The handler sets state of its transaction (SET LOCAL, SET ROLE, set_config, a temporary table, a lock of the
    session's), which would hold for the handlers that share the transaction. It runs again in a transaction of its own,
    and so do its messages from now on."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


class PipelineError(RelevoError):
    """The handler asked for a result that a pipeline does not have yet, and that a coroutine cannot wait for here. It
    runs again without a pipeline."""


class Unit(Protocol):
    """One transaction, on a connection that nobody else uses meanwhile. Blocking; used by one thread.

    Order of calls: ``begin``, any ``execute``, ``enter`` … ``leave`` for each handler, perhaps between ``pipeline`` and
    ``sync``, then ``commit`` or ``rollback``, then ``close``. After any error only ``rollback`` and ``close`` follow,
    and neither raises.
    """

    def begin(self) -> None:
        """Take a connection and begin. Raises ``ConfigError`` for one on which statements commit by themselves."""

    def prove(self) -> None:
        """Raise ``ConfigError`` where what the handler would get does not lead to this connection."""

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        """One of Relevo's own statements, ``:name`` style, in this transaction."""

    def enter(self) -> object:
        """What the handler gets as ``tx``: the connection, or a fresh session on it. It is guarded until ``leave``."""

    def leave(self) -> None:
        """Flush. Raises ``MisuseError`` if the handler ended the transaction, ``AbortedTransactionError`` if the
        database did."""

    def pipeline(self) -> None:
        """From here on, statements whose results nobody reads go out without waiting, if the driver can do that."""

    def sync(self) -> None:
        """Wait for all of them. Raises the error of any; and ``PipelineError`` as ``Transactions.pipelines`` says."""

    def commit(self, xid: str | None = None) -> None:
        """``xid``: PostgreSQL's name of the transaction the inbox row was written in, where it is known. Raises
        ``MisuseError`` if this is another one by now."""

    def rollback(self) -> None: ...

    def close(self) -> None:
        """Give the connection back; a broken one is thrown away."""

    def distrust(self) -> None:
        """The connection is not to be used again after ``close``, as far as Relevo opened it: something failed on it,
        and what a handler left there may be why."""

    def sever(self) -> bool:
        """From the event loop, while a thread or task waits for an answer in one of the calls above: end the
        connection, so that it is found lost. Whether that was possible. Does not wait."""

    def waits_for_pool(self) -> bool:
        """From the event loop: whether ``begin`` waits for the application's pool, where other users have all
        connections."""

    def waits(self, quiet_s: float) -> bool:
        """From the event loop: whether a thread or task is known to wait for the answer to a statement on the
        connection, and nothing has come for ``quiet_s``."""

    @property
    def broken(self) -> bool:
        """Whether the connection is lost."""

    @property
    def misused(self) -> bool:
        """Whether the handler tried to end the transaction and got the driver's error for it, not Relevo's."""

    @property
    def bypassed(self) -> bool:
        """Whether the handler removed what watches it, so that it may have committed the inbox rows. Known on SQLite;
        on PostgreSQL the name of the transaction tells."""


class AsyncUnit(Protocol):
    """As ``Unit``, awaited, on the event loop."""

    async def begin(self) -> None: ...
    async def prove(self) -> None: ...
    async def execute(self, sql: str, params: Mapping[str, Any]) -> Rows: ...
    async def enter(self) -> object: ...
    async def leave(self) -> None: ...
    async def pipeline(self) -> None: ...
    async def sync(self) -> None: ...
    async def commit(self, xid: str | None = None) -> None: ...
    async def rollback(self) -> None: ...
    async def close(self) -> None: ...
    def distrust(self) -> None: ...
    def sever(self) -> bool: ...
    def waits_for_pool(self) -> bool: ...
    def waits(self, quiet_s: float) -> bool: ...
    @property
    def broken(self) -> bool: ...
    @property
    def misused(self) -> bool: ...
    @property
    def bypassed(self) -> bool: ...


class Transactions(Protocol):
    """Makes units for one kind of handler. Connects to nothing before the first ``begin``. Thread-safe."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def is_async(self) -> bool:
        """Whether ``unit`` makes ``AsyncUnit``s."""

    @property
    def pipelines(self) -> bool:
        """Whether units have a pipeline. In one, an error may surface later, and what an asynchronous handler cannot
        be told in time (``cursor.rowcount`` before a fetch) ends the run with ``PipelineError``."""

    def unit(self, *, many: bool = False) -> Any:
        """A ``Unit`` or an ``AsyncUnit``. ``many``: for more than one handler."""

    def forget_idle(self) -> None:
        """Drop the connections that Relevo opened itself and that are not in use: the server does not answer."""

    async def aclose(self) -> None:
        """Close the connections Relevo opened itself. What the application gave stays open."""


class InThread:
    """An ``AsyncUnit`` of a blocking one, for a database whose driver has no asynchronous form. What can wait for locks
    or disks runs in a thread; ``execute`` stays on the loop, as the handler's own statements do."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    async def begin(self) -> None:
        await finished(asyncio.to_thread(self._unit.begin))

    async def prove(self) -> None:
        self._unit.prove()

    async def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        return self._unit.execute(sql, params)

    async def enter(self) -> object:
        return self._unit.enter()

    async def leave(self) -> None:
        self._unit.leave()

    async def pipeline(self) -> None:
        self._unit.pipeline()

    async def sync(self) -> None:
        self._unit.sync()

    async def commit(self, xid: str | None = None) -> None:
        await finished(asyncio.to_thread(self._unit.commit))

    async def rollback(self) -> None:
        self._unit.rollback()

    async def close(self) -> None:
        self._unit.close()

    def distrust(self) -> None:
        self._unit.distrust()

    def sever(self) -> bool:
        return self._unit.sever()

    def waits_for_pool(self) -> bool:
        return self._unit.waits_for_pool()

    def waits(self, quiet_s: float) -> bool:
        return self._unit.waits(quiet_s)

    @property
    def broken(self) -> bool:
        return self._unit.broken

    @property
    def misused(self) -> bool:
        return self._unit.misused

    @property
    def bypassed(self) -> bool:
        return self._unit.bypassed


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Wait for ``work`` to its end even when cancelled, then be cancelled: half a commit would be an unknown one, and a
    thread goes on whoever waits for it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
