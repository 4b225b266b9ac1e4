"""One piece of work on a database connection of its own: what most commands are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from relevo.clients import database_for
from relevo.ports.database import Database
from relevo.settings import Settings

T = TypeVar("T")


def on_database(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    """The result of ``work``, on a loop of its own; the connection is closed afterwards."""

    async def run() -> T:
        async with aclosing(database_for(settings.database, connections_max=1)) as database:
            return await work(database)

    return asyncio.run(run())
