"""Relevo's own connections to PostgreSQL, when the server ends one of them."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import errors

from relevo.clients.postgres import PostgresDatabase
from relevo.errors import UnreachableError
from relevo.storage import laning
from tests.support.log_stores import log_store


@pytest.mark.parametrize(
    "error",
    [errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, psycopg.OperationalError],
)
async def test_what_ended_one_connection_ended_its_siblings(pg_database: str, error: type[psycopg.Error]) -> None:
    """Whether the server's last word is read, or the socket found closed, is a matter of chance: either way the next
    statement gets a new connection, and not one error for each that lies idle."""
    store = log_store(pg_database)
    database = PostgresDatabase(store.settings, connections_max=4)
    try:
        await asyncio.gather(*[database.run(laning.lane_count(), read_only=True) for _ in range(3)])
        assert len(database._idle) == 3
        with psycopg.connect(store.url, autocommit=True) as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name = 'relevo'"
            )
        explained = database._explained(error("gone"))
        assert isinstance(explained, UnreachableError)
        assert await database.run(laning.lane_count(), read_only=True) == 64
    finally:
        await database.aclose()
