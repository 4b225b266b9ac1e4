"""Driving a script on the caller's handle. Exceptions stay as they are, but for those that mean the installation."""

from __future__ import annotations

from typing import TypeVar

from relevo.errors import RelevoError, SchemaError
from relevo.script import Rows, Script, Statement, arun, run
from relevo.storage import appending
from relevo.storage.catalog import Catalog
from relevo.storage.handles import CallerHandle
from relevo.storage.handles.failures import asks_for_table, explain, missing

T = TypeVar("T")


def drive(script: Script[T], handle: CallerHandle, catalog: Catalog) -> T:
    """Run ``script`` on a sync handle."""

    def execute(statement: Statement) -> Rows:
        return handle.execute(catalog.text(statement.name), statement.params)

    try:
        return run(script, execute)
    except RelevoError:
        raise
    except Exception as error:
        explained = explain(error, catalog)
        if explained is None and asks_for_table(error):
            explained = _judge(run(appending.is_there(f"{catalog.prefix}outbox"), execute), catalog)
        if explained is None:
            raise
        raise explained from error


async def adrive(script: Script[T], handle: CallerHandle, catalog: Catalog) -> T:
    """Run ``script`` on an async handle."""

    async def execute(statement: Statement) -> Rows:
        return await handle.aexecute(catalog.text(statement.name), statement.params)

    try:
        return await arun(script, execute)
    except RelevoError:
        raise
    except Exception as error:
        explained = explain(error, catalog)
        if explained is None and asks_for_table(error):
            explained = _judge(await arun(appending.is_there(f"{catalog.prefix}outbox"), execute), catalog)
        if explained is None:
            raise
        raise explained from error


def _judge(there: bool, catalog: Catalog) -> SchemaError | None:
    return None if there else missing(catalog.table("outbox"))
