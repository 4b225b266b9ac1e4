"""Driving a script on the caller's handle. Exceptions stay as they are, but for those that mean the installation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from relevo.catalog import Catalog
from relevo.errors import ConfigError, RefusedError, RelevoError, SchemaError
from relevo.message import Message
from relevo.script import AsyncExecute, Execute, Script, arun, run
from relevo.storage import appending, emitting
from relevo.storage.handles import CallerHandle
from relevo.storage.handles.failures import asks_for_table, causes, explain, missing

T = TypeVar("T")


def drive(script: Script[T], handle: CallerHandle, catalog: Catalog) -> T:
    """Run ``script`` on a sync handle."""
    try:
        return run(script, _executor(handle, catalog))
    except RelevoError:
        raise
    except Exception as error:
        _tell(error, handle, catalog)
        raise


async def adrive(script: Script[T], handle: CallerHandle, catalog: Catalog) -> T:
    """Run ``script`` on an async handle."""
    try:
        return await arun(script, _aexecutor(handle, catalog))
    except RelevoError:
        raise
    except Exception as error:
        await _atell(error, handle, catalog)
        raise


def append(messages: Sequence[Message], handle: CallerHandle, catalog: Catalog, *, table: bool = True) -> None:
    """Write ``messages`` over a sync handle. Not into the ``table``: into the write-ahead log alone."""
    if not table:
        return drive(_emit(messages, catalog), handle, catalog)
    if len(messages) == 1:
        return _append_one(messages[0], handle, catalog)
    if not _by_copy(messages, handle):
        return drive(appending.append(messages, catalog.dialect), handle, catalog)
    with _explained(catalog):
        return handle.copy(catalog.text("append.copy"), _tuples(messages))


async def aappend(messages: Sequence[Message], handle: CallerHandle, catalog: Catalog, *, table: bool = True) -> None:
    """Write ``messages`` over an async handle. Not into the ``table``: into the write-ahead log alone."""
    if not table:
        return await adrive(_emit(messages, catalog), handle, catalog)
    if len(messages) == 1:
        return await _aappend_one(messages[0], handle, catalog)
    if not _by_copy(messages, handle):
        return await adrive(appending.append(messages, catalog.dialect), handle, catalog)
    with _explained(catalog):
        return await handle.acopy(catalog.text("append.copy"), _tuples(messages))


def _append_one(message: Message, handle: CallerHandle, catalog: Catalog) -> None:
    """``appending.append`` of one message, without a script: it is on the caller's time, every time."""
    try:
        handle.execute(catalog.text("append.one"), appending.row(message))
    except RelevoError:
        raise
    except Exception as error:
        _tell(error, handle, catalog)
        raise


async def _aappend_one(message: Message, handle: CallerHandle, catalog: Catalog) -> None:
    try:
        await handle.aexecute(catalog.text("append.one"), appending.row(message))
    except RelevoError:
        raise
    except Exception as error:
        await _atell(error, handle, catalog)
        raise


def _emit(messages: Sequence[Message], catalog: Catalog) -> Script[None]:
    if catalog.dialect != "postgresql":
        raise ConfigError("an Outbox without a table needs PostgreSQL: its write-ahead log is what carries the event")
    return emitting.emit([emitting.content(message) for message in messages], catalog)


def _by_copy(messages: Sequence[Message], handle: CallerHandle) -> bool:
    return len(messages) >= appending.COPY_ROWS_MIN and handle.copies


def _tuples(messages: Sequence[Message]) -> Iterator[tuple[Any, ...]]:
    return (tuple(appending.row(message).values()) for message in messages)


@contextmanager
def _explained(catalog: Catalog) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _refuse_text(error)
        explained = explain(error, catalog)
        if explained is None:
            raise
        raise explained from error


def _executor(handle: CallerHandle, catalog: Catalog) -> Execute:
    return lambda statement: handle.execute(catalog.text(statement.name), statement.params)


def _aexecutor(handle: CallerHandle, catalog: Catalog) -> AsyncExecute:
    return lambda statement: handle.aexecute(catalog.text(statement.name), statement.params)


def _refuse_text(error: Exception) -> None:
    """Raise ``RefusedError`` for text that the connection's client encoding has no way to write: nothing was sent."""
    for cause in causes(error):
        if isinstance(cause, UnicodeEncodeError):
            raise RefusedError(
                f"the client_encoding of this connection ({cause.encoding}) cannot carry {cause.object[:40]!r}. "
                "Connect with client_encoding=UTF8"
            ) from error


def _tell(error: Exception, handle: CallerHandle, catalog: Catalog) -> None:
    """Raise a ``SchemaError`` from what means the installation; nothing for the rest."""
    _refuse_text(error)
    explained = explain(error, catalog)
    if explained is None and asks_for_table(error):
        explained = _judge(run(_is_there(catalog), _executor(handle, catalog)), catalog)
    if explained is not None:
        raise explained from error


async def _atell(error: Exception, handle: CallerHandle, catalog: Catalog) -> None:
    _refuse_text(error)
    explained = explain(error, catalog)
    if explained is None and asks_for_table(error):
        explained = _judge(await arun(_is_there(catalog), _aexecutor(handle, catalog)), catalog)
    if explained is not None:
        raise explained from error


def _is_there(catalog: Catalog) -> Script[bool]:
    return appending.is_there(f"{catalog.prefix}outbox")


def _judge(there: bool, catalog: Catalog) -> SchemaError | None:
    return None if there else missing(catalog.table("outbox"))
