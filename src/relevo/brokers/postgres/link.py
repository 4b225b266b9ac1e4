"""Connections to the database that is the broker."""

from __future__ import annotations

from typing import TypeVar

from relevo.bounds import answer_s
from relevo.brokers.postgres.options import PostgresOptions
from relevo.clients import database_for
from relevo.clients.sqlstate import sqlstates
from relevo.errors import ConfigError, RelevoError, SchemaError, UnreachableError
from relevo.ports.database import Database
from relevo.script import Script
from relevo.settings import DatabaseSettings
from relevo.storage import laning
from relevo.storage.ready import ready

T = TypeVar("T")

CONNECTIONS_MAX = 3


class Link:
    """A few connections of one publisher, subscription or history. ``lease_s``: what a process that stands still inside
    a transaction must not outlive."""

    def __init__(self, url: str, options: PostgresOptions) -> None:
        settings = DatabaseSettings(
            url=url, schema=options.schema, prefix=options.prefix, prepared_statements=options.prepared_statements
        )
        self.database: Database = database_for(
            settings, connections_max=CONNECTIONS_MAX, answer_s=answer_s(options.lease_s)
        )
        self._settings = settings
        self._idle_timeout_s = options.lease_s / 2

    async def run(self, script: Script[T], *, timeout_s: float | None = None) -> T:
        """One transaction. Raises ``UnreachableError``, also for what goes by itself (a deadlock, a lock that was not
        to be had for ``timeout_s``), and ``ConfigError`` for missing tables and rights."""
        try:
            return await self.database.run(
                script, idle_timeout_s=self._idle_timeout_s, statement_timeout_s=timeout_s, lock_timeout_s=timeout_s
            )
        except Exception as error:
            self._explain(error)
            raise

    async def read(self, script: Script[T], *, by_index: bool = False) -> T:
        """Each statement a transaction of its own, on one connection. Raises as ``run`` does."""
        try:
            return await self.database.run(script, read_only=True, by_index=by_index)
        except Exception as error:
            self._explain(error)
            raise

    async def check(self) -> str:
        """Raise ``ConfigError`` or ``UnreachableError`` in plain words unless the tables are there; returns the source
        that the relays of that database read with."""
        try:
            return (await ready(self.database, self._settings)).source
        except SchemaError as error:
            raise ConfigError(f"broker.url: {error}") from error

    async def lane_count(self) -> int:
        """How many lanes there are. Raises ``ConfigError`` where the log cannot be read: its index is not there."""
        source = await self.check()
        if source != "log":
            raise ConfigError(
                f"broker.url: the outbox in {self.database.url} is read as {source!r}, and consumers can read it "
                "themselves only as a log. Run there: relevo source move log"
            )
        return await self.read(laning.lane_count())

    async def aclose(self) -> None:
        await self.database.aclose()

    def _explain(self, error: Exception) -> None:
        """Raise ours for what is a database's own error; its SQLSTATE is with the cause."""
        if isinstance(error, SchemaError):
            raise ConfigError(f"broker.url: {error}") from error
        state = next(sqlstates(error), None)
        if state is not None and not isinstance(error, RelevoError):
            text = str(error).splitlines()[0]
            raise UnreachableError(f"{self.database.url} did not do it ({state}): {text}") from error
