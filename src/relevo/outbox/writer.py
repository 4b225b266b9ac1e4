"""``Outbox``: the façade. It only delegates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from relevo import signals
from relevo.catalog import DEFAULT_PREFIX, Catalog, check_identifier
from relevo.errors import ConfigError, MisuseError
from relevo.message import MESSAGE_BYTES_MAX, Message
from relevo.outbox import taps
from relevo.outbox.arguments import each_of, refuse_mixed_up, refuse_no_message, validates
from relevo.outbox.building import build, check
from relevo.outbox.options import DEFAULT, AddArguments, AddOptions
from relevo.outbox.pending import PendingAdd, call_site
from relevo.outbox.running import aappend, adrive, append, drive
from relevo.ports.database import Dialect
from relevo.storage import appending, scheduling
from relevo.storage.handles import CallerHandle, handle_for

T = TypeVar("T")


class AsyncHandle(Protocol):
    """AsyncSession, AsyncConnection, async_scoped_session, psycopg's AsyncConnection, asyncpg and aiosqlite."""

    @property
    def execute(self) -> Callable[..., Awaitable[Any]]: ...


class SyncHandle(Protocol):
    """Session, scoped_session, Connection, psycopg's Connection, sqlite3.Connection."""

    @property
    def commit(self) -> Callable[[], None]: ...


class Outbox:
    """Writes messages into the transaction of the caller; a description without a connection, safe at import time.

    ``schema``, ``prefix``: where ``relevo migrate`` put the tables. ``message_bytes_max``: limit for payload, key and
    headers together. ``allow_autocommit``: accept handles whose driver commits the row by itself. ``table=False``:
    write into PostgreSQL's write-ahead log alone, for relays with ``relay.source = "wal"``; such events cannot be found
    or read again, and are lost with the slot. ``validate``: whether every event is read back from its payload and
    compared before it is written (``None``: the setting ``outbox.validate``, which is true if nothing else is set).

    Threads and tasks may share one. It never begins, commits or rolls back. With an async handle every method returns
    an awaitable; what can be checked without the database is checked at the call.
    """

    def __init__(
        self,
        *,
        schema: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        allow_autocommit: bool = False,
        table: bool = True,
        validate: bool | None = None,
    ) -> None:
        check_identifier("prefix", prefix)
        if schema is not None:
            check_identifier("schema", schema)
        if message_bytes_max < 1:
            raise ConfigError("message_bytes_max must be at least 1")
        self._schema = schema
        self._prefix = prefix
        self._bytes_max = message_bytes_max
        self._allow_autocommit = allow_autocommit
        self._table = table
        self._validate = validate
        self._catalogs: dict[Dialect, Catalog] = {}

    def __repr__(self) -> str:
        return f"Outbox(schema={self._schema!r}, prefix={self._prefix!r})"

    @overload
    def add(self, handle: AsyncHandle, event: object, **options: Unpack[AddArguments]) -> Coroutine[Any, Any, UUID]: ...

    @overload
    def add(self, handle: SyncHandle, event: object, **options: Unpack[AddArguments]) -> UUID: ...

    def add(self, handle: Any, event: object, **options: Unpack[AddArguments]) -> Any:
        """Add a declared event or command to the caller's transaction; returns its ``event_id``.

        An ORM session is flushed first, so that ``seq`` is taken after the locks of your changes. ``topic`` and ``key``
        override the declaration (``key=None``: no order). ``aggregate_version``: your row's version, by which
        inversions and gaps can be noticed. Headers carry trace, correlation and causation without being asked.
        ``at`` (an aware datetime) or ``after``: not before then by the database's clock; a relay moves it into the
        outbox when it is due, it takes its place in the order then, and until then ``cancel`` takes it back.

        One round trip; none of its own in a pipeline of psycopg's, and there the database's errors surface as the
        driver's, where the pipeline is read next: at the commit at the latest.

        Raises ``RefusedError`` (with the path into the data), ``TooLargeError``, ``NotInTransactionError``,
        ``SchemaError`` (no table, no right, read-only); any other exception of the database is the driver's own, and
        leaves the transaction in the state that driver leaves it in.
        """
        chosen = AddOptions(**options) if options else DEFAULT
        when = scheduling.due(chosen.at, chosen.after)
        refuse_mixed_up(handle, event)
        message = build(event, self._bytes_max, chosen, validate=self._validates())
        return self._append(handle, [message], [event], message.event_id, "outbox.add()", when)

    @overload
    def add_many(self, handle: AsyncHandle, events: Iterable[object]) -> Coroutine[Any, Any, list[UUID]]: ...

    @overload
    def add_many(self, handle: SyncHandle, events: Iterable[object]) -> list[UUID]: ...

    def add_many(self, handle: Any, events: Iterable[object]) -> Any:
        """Add declared events in this order; returns their ids. One statement on PostgreSQL (up to 10,000 events or
        8 MB each), by COPY on psycopg from 1,000 on.

        All are encoded and checked before the first is written. Raises as ``add`` does.
        """
        data = each_of(handle, events)
        validate = self._validates()
        messages = [build(event, self._bytes_max, validate=validate) for event in data]
        ids = [message.event_id for message in messages]
        return self._append(handle, messages, data, ids, "outbox.add_many()")

    @overload
    def add_message(self, handle: AsyncHandle, message: Message) -> Coroutine[Any, Any, UUID]: ...

    @overload
    def add_message(self, handle: SyncHandle, message: Message) -> UUID: ...

    def add_message(self, handle: Any, message: Message) -> Any:
        """Add an encoded message as it is (nothing is added to its headers); only ``created_at`` is replaced, by the
        database's clock. Raises as ``add`` does."""
        refuse_no_message(handle, message)
        check(message, self._bytes_max)
        return self._append(handle, [message], [None], message.event_id, "outbox.add_message()")

    @overload
    def find(self, handle: AsyncHandle, event_id: UUID) -> Coroutine[Any, Any, bool]: ...

    @overload
    def find(self, handle: SyncHandle, event_id: UUID) -> bool: ...

    def find(self, handle: Any, event_id: UUID) -> Any:
        """Whether this message is in the outbox or scheduled, seen from ``handle``: the question after a lost reply to
        COMMIT.

        Ask on a new connection, and soon: the search reads back from the newest row to the time inside the UUIDv7 (ten
        minutes of clock difference allowed; another kind of UUID reads the whole table), and retention removes rows
        that are settled.
        """
        caller = handle_for(handle)
        if not self._table:
            raise MisuseError(
                "an Outbox without a table cannot find what it wrote: the write-ahead log is not searched"
            )
        if caller.is_async:
            return self._afind(caller, event_id)
        return drive(appending.find(event_id), caller, self._catalog(caller.dialect))

    async def _afind(self, caller: CallerHandle, event_id: UUID) -> bool:
        return await adrive(appending.find(event_id), caller, self._catalog(caller.dialect))

    @overload
    def cancel(self, handle: AsyncHandle, event_id: UUID) -> Coroutine[Any, Any, bool]: ...

    @overload
    def cancel(self, handle: SyncHandle, event_id: UUID) -> bool: ...

    def cancel(self, handle: Any, event_id: UUID) -> Any:
        """Take back a message added with ``at`` or ``after``, in the caller's transaction. False: it is on its way
        already, or there is none. Waits for a relay that is moving this very message. Raises as ``add`` does."""
        caller = handle_for(handle)
        if caller.is_async:
            pending = PendingAdd(lambda: self._acancel(caller, event_id), call_site("outbox.cancel()"))
            caller.guard(pending.site)
            return pending
        if not self._allow_autocommit:
            caller.refuse_autocommit()
        return drive(scheduling.cancel(event_id), caller, self._catalog(caller.dialect))

    async def _acancel(self, caller: CallerHandle, event_id: UUID) -> bool:
        if not self._allow_autocommit:
            await caller.arefuse_autocommit()
        return await adrive(scheduling.cancel(event_id), caller, self._catalog(caller.dialect))

    def _append(
        self,
        handle: object,
        messages: Sequence[Message],
        data: Sequence[object],
        result: T,
        what: str,
        when: scheduling.Due | None = None,
    ) -> T | PendingAdd[T]:
        caller = handle_for(handle)
        if caller.is_async:
            if not self._allow_autocommit:
                caller.refuse_autocommit()
            pending = PendingAdd(lambda: self._aappend(caller, messages, data, result, when), call_site(what))
            caller.guard(pending.site)
            return pending
        if taps.tell(messages, data):
            catalog = self._catalog(caller.dialect)
            if not self._allow_autocommit:
                caller.refuse_autocommit()
            caller.flush()
            if when is None:
                append(messages, caller, catalog, table=self._table)
                _hint(caller)
            else:
                drive(scheduling.add(messages[0], when), caller, catalog)
        return result

    async def _aappend(
        self,
        caller: CallerHandle,
        messages: Sequence[Message],
        data: Sequence[object],
        result: T,
        when: scheduling.Due | None,
    ) -> T:
        if taps.tell(messages, data):
            catalog = self._catalog(caller.dialect)
            if not self._allow_autocommit:
                await caller.arefuse_autocommit()
            await caller.aflush()
            if when is None:
                await aappend(messages, caller, catalog, table=self._table)
                _hint(caller)
            else:
                await adrive(scheduling.add(messages[0], when), caller, catalog)
        return result

    def _validates(self) -> bool:
        if self._validate is None:
            self._validate = validates()
        return self._validate

    def _catalog(self, dialect: Dialect) -> Catalog:
        found = self._catalogs.get(dialect)
        if found is None:
            found = self._catalogs[dialect] = Catalog(dialect, self._schema, self._prefix)
        return found


def _hint(caller: CallerHandle) -> None:
    if not caller.after_commit(signals.notify):
        signals.notify()
