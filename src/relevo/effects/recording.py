"""Recording an effect in the caller's transaction."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Coroutine
from typing import Any, Final, overload
from uuid import UUID

import msgspec

from relevo import signals
from relevo.catalog import DEFAULT_PREFIX, Catalog
from relevo.codec.leaves import explain
from relevo.correlation import current
from relevo.effects.declaring import Effect
from relevo.errors import RefusedError
from relevo.message import check_text
from relevo.naming import check_name
from relevo.outbox.pending import PendingAdd
from relevo.outbox.running import adrive, drive
from relevo.outbox.writer import AsyncHandle, SyncHandle
from relevo.ports.database import Dialect
from relevo.storage import effecting
from relevo.storage.handles import CallerHandle, Site, handle_for

CHANNEL: Final = "effects"
"""Of ``relevo.signals``: an effect was recorded in this process."""

KEY_MAX: Final = 500
DATA_BYTES_MAX: Final = 1_000_000


class Effects:
    """Records effects; a description without a connection. ``schema``, ``prefix``: where the tables are."""

    def __init__(self, *, schema: str | None = None, prefix: str = DEFAULT_PREFIX) -> None:
        self._catalogs: dict[Dialect, Catalog] = {}
        self._schema = schema
        self._prefix = prefix
        self._catalog("postgresql")  # refuses names that cannot be

    def __repr__(self) -> str:
        return f"Effects(schema={self._schema!r}, prefix={self._prefix!r})"

    @overload
    def once(
        self, handle: AsyncHandle, effect: Effect | str, *, key: str | UUID | int, data: Any = None
    ) -> Coroutine[Any, Any, bool]: ...

    @overload
    def once(self, handle: SyncHandle, effect: Effect | str, *, key: str | UUID | int, data: Any = None) -> bool: ...

    def once(self, handle: Any, effect: Effect | str, *, key: str | UUID | int, data: Any = None) -> Any:
        """Record ``effect`` under ``key`` in the caller's transaction; whether it is new.

        A second recording of the same name and key is the same effect, whatever its data, also in a replay: it is
        performed once. ``data``: what JSON can hold; UUIDs, times and decimals become text. With an async handle the
        result is awaited. Raises ``RefusedError`` for a key or data that cannot be stored, ``NotInTransactionError``,
        ``SchemaError``; any other exception of the database is the driver's own.
        """
        name = effect.name if isinstance(effect, Effect) else check_name("effect name", effect)
        script = _script(name, _key(key), _data(data))
        caller = handle_for(handle)
        if caller.is_async:
            caller.refuse_autocommit()
            pending = PendingAdd(lambda: self._aonce(caller, script), _site())
            caller.guard(pending.site)
            return pending
        caller.refuse_autocommit()
        caller.flush()
        new = drive(effecting.record(*script), caller, self._catalog(caller.dialect))
        _hint(caller)
        return new

    async def _aonce(self, caller: CallerHandle, script: tuple[str, str, str, UUID | None, str | None]) -> bool:
        await caller.arefuse_autocommit()
        await caller.aflush()
        new = await adrive(effecting.record(*script), caller, self._catalog(caller.dialect))
        _hint(caller)
        return new

    def _catalog(self, dialect: Dialect) -> Catalog:
        found = self._catalogs.get(dialect)
        if found is None:
            schema = None if dialect == "sqlite" else self._schema
            found = self._catalogs[dialect] = Catalog(dialect, schema, self._prefix)
        return found


once = Effects().once
"""``Effects.once`` for tables of the usual names."""


def _script(name: str, key: str, data: str) -> tuple[str, str, str, UUID | None, str | None]:
    context = current()
    event_id = None
    if context.consumer is not None and context.causation_id is not None:
        with contextlib.suppress(ValueError):  # an application's own cause need not be a message
            event_id = UUID(context.causation_id)
    return name, key, data, event_id, context.consumer


def _key(key: object) -> str:
    if isinstance(key, bool) or not isinstance(key, (str, UUID, int)):
        raise RefusedError(f"an effect's key is a str, int or UUID, not {type(key).__name__}", path="key")
    text = str(key)
    if not text or len(text) > KEY_MAX:
        raise RefusedError(f"an effect's key has 1 to {KEY_MAX} characters", path="key")
    check_text(text, "key")
    return text


def _data(data: object) -> str:
    try:
        text = msgspec.json.encode(data).decode()
    except (TypeError, ValueError, UnicodeError) as error:
        raise RefusedError(f"an effect's data must be what JSON can hold: {error}", path="data") from None
    if "null" in text:  # NaN and infinity are written as null
        try:
            explain(data)
        except RefusedError as error:
            raise RefusedError(str(error).partition(": ")[2], path=f"data{error.path[1:]}") from None
    if "\\u0000" in text:
        raise RefusedError("a NUL character (U+0000) cannot be stored by PostgreSQL's jsonb", path="data")
    if len(text) > DATA_BYTES_MAX:
        raise RefusedError(f"an effect's data is larger than {DATA_BYTES_MAX} bytes: carry an id instead", path="data")
    return text


def _site() -> Site:
    """The caller's line, for whoever forgets the ``await``."""
    frame = sys._getframe(2)
    return Site("effects.once()", frame.f_code.co_filename, frame.f_lineno)


def _hint(caller: CallerHandle) -> None:
    if not caller.after_commit(_notify):
        _notify()


def _notify() -> None:
    """Both channels: a session keeps one hook, and the outbox may have set its own before."""
    signals.notify(CHANNEL)
    signals.notify()
