"""Several statements in one round trip on a real server: all of them, or none and the first error."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from relevo.storage.transactions.commands import acommand, command
from tests.support.waiting import eventually

COMMITS = b"insert into done values (2); select 1; commit"
FAILS = b"insert into done values (3); select 1 / 0; commit"


class Plain(psycopg.ClientCursor[tuple[object, ...]]):
    """A cursor class of the application's that must not be asked."""

    def execute(self, *arguments: object, **options: object) -> Plain:
        raise AssertionError("a cursor was used")


def rows(url: str) -> list[object]:
    with psycopg.connect(url) as connection:
        return [number for (number,) in connection.execute("select n from done order by n").fetchall()]


def state(connection: psycopg.Connection | psycopg.AsyncConnection) -> str:
    return connection.info.transaction_status.name


@pytest.fixture
def url(pg_database: str) -> str:
    with psycopg.connect(pg_database) as connection:
        connection.execute("create table done (n int)")
    return pg_database


def test_blocking(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("insert into done values (1)")
        connection.cursor_factory = Plain
        command(connection, COMMITS)
        assert rows(url) == [1, 2] and state(connection) == "IDLE"
        connection.cursor_factory = psycopg.Cursor
        connection.execute("insert into done values (4)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            command(connection, FAILS)
        assert state(connection) == "INERROR"
        connection.rollback()
    assert rows(url) == [1, 2]
    with pytest.raises(psycopg.OperationalError):
        command(connection, COMMITS)  # closed


async def test_asynchronous(url: str) -> None:
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection:
        await connection.execute("insert into done values (1)")
        await acommand(connection, COMMITS)
        assert rows(url) == [1, 2] and state(connection) == "IDLE"
        await connection.execute("insert into done values (4)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            await acommand(connection, FAILS)
        assert state(connection) == "INERROR"
        await connection.rollback()
    assert rows(url) == [1, 2]


async def test_a_cancelled_wait_leaves_the_connection_usable_or_closed(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        work = asyncio.create_task(acommand(connection, b"select pg_sleep(30); insert into done values (9)"))
        with psycopg.connect(url, autocommit=True) as other:
            pid, running = (
                connection.info.backend_pid,
                "select 1 from pg_stat_activity where pid = %s and wait_event = 'PgSleep'",
            )
            await eventually(lambda: other.execute(running, (pid,)).fetchall(), what="the server sleeps")
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        if not connection.closed:
            await connection.execute("select 1")
    assert rows(url) == []


async def test_the_server_ends_the_connection(url: str) -> None:
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection:
        await connection.execute("insert into done values (1)")
        with pytest.raises(psycopg.OperationalError):
            await acommand(connection, b"select pg_terminate_backend(pg_backend_pid()); commit")
        assert connection.closed
    assert rows(url) == []
