"""Relevo's own connections to PostgreSQL, when the server, or the network before it, hangs: no answer and no end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from relevo.bounds import answer_s
from relevo.catalog import Catalog
from relevo.clients.conninfo import connecting
from relevo.clients.postgres import PostgresDatabase
from relevo.errors import UnreachableError
from relevo.script import Script, Statement
from relevo.settings import DatabaseSettings
from tests.support.hanging import HangingProxy, hanging

ANSWER_S = 2.0
PROMPT_S = 1.0


@pytest.fixture
def proxy(pg_database: str) -> Iterator[HangingProxy]:
    with hanging(pg_database) as proxy:
        yield proxy


@pytest.fixture
async def database(proxy: HangingProxy, pg_database: str, monkeypatch: pytest.MonkeyPatch) -> PostgresDatabase:
    database = PostgresDatabase(DatabaseSettings(url=proxy.through(pg_database)), answer_s=ANSWER_S)
    monkeypatch.setattr(Catalog, "text", lambda _self, name: name)
    return database


def sql(text: str = "select 1") -> Script[int]:
    rows = yield Statement(text, {})
    return int(rows[0][0])


@pytest.mark.parametrize(
    ("how", "single"),
    [
        *[(how, single) for how in ("no reply", "in the reply", "to the statement") for single in (True, False)],
        ("to begin", False),  # one statement has neither begin nor commit
        ("to the commit", False),
    ],
)
async def test_a_connection_that_hangs_is_given_up_with_its_siblings(
    proxy: HangingProxy, database: PostgresDatabase, how: str, single: bool
) -> None:
    await asyncio.gather(*[database.run(sql(), single=single) for _ in range(3)])
    assert len(database._idle) == 3
    stages = {"to begin": b"begin", "to the statement": b"select", "to the commit": b"commit"}
    if how == "no reply":
        proxy.hang()
    elif how == "in the reply":
        proxy.hang_in(7)
    else:
        proxy.hang_after = stages[how]
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="no reply within 2 s"):
        await database.run(sql(), single=single)
    assert ANSWER_S <= time.monotonic() - began < 2 * ANSWER_S
    assert not database._idle
    proxy.hang_after = None
    assert await database.run(sql(), single=single) == 1


async def test_a_rollback_without_an_answer_is_not_waited_for(proxy: HangingProxy, database: PostgresDatabase) -> None:
    proxy.hang_after = b"rollback"
    began = time.monotonic()
    with pytest.raises(psycopg.errors.DivisionByZero):
        await database.run(sql("select 1 / 0"))
    assert time.monotonic() - began < 2 * ANSWER_S
    assert proxy.hung == 1
    assert not database._idle
    assert await database.run(sql()) == 1


@pytest.mark.parametrize("new", ["silent", "half"])
async def test_connecting_has_a_bound(proxy: HangingProxy, database: PostgresDatabase, new: str) -> None:
    """Also where the answer to the first message (of TLS, or of the protocol) breaks off."""
    proxy.new = "silent" if new == "silent" else "half"
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="does not answer"):
        await database.run(sql())
    assert time.monotonic() - began < 3 * ANSWER_S  # localhost may have two addresses
    proxy.new = "work"
    assert await database.run(sql()) == 1


async def test_whoever_waits_for_a_connection_gets_one_when_those_in_use_are_given_up(
    proxy: HangingProxy, database: PostgresDatabase
) -> None:
    await asyncio.gather(*[database.run(sql()) for _ in range(4)])
    proxy.hang()
    began = time.monotonic()
    results = await asyncio.gather(*[database.run(sql()) for _ in range(10)], return_exceptions=True)
    assert time.monotonic() - began < 2 * ANSWER_S
    assert [result for result in results if result == 1] == [1] * 6
    assert sum(isinstance(result, UnreachableError) for result in results) == 4


async def test_a_task_that_is_cancelled_leaves_a_connection_that_hangs(
    proxy: HangingProxy, database: PostgresDatabase
) -> None:
    """In a statement, and in the rollback after it."""
    await database.run(sql())
    proxy.hang_after = b"select"
    task = asyncio.create_task(database.run(sql()))
    await asyncio.to_thread(proxy.caught)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < ANSWER_S + PROMPT_S
    assert not database._idle


async def test_a_task_that_is_cancelled_twice_leaves_at_once(proxy: HangingProxy, database: PostgresDatabase) -> None:
    await database.run(sql())
    proxy.hang_after = b"select"
    task = asyncio.create_task(database.run(sql()))
    await asyncio.to_thread(proxy.caught)
    began = time.monotonic()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < PROMPT_S


async def test_a_task_that_is_cancelled_leaves_promptly(database: PostgresDatabase) -> None:
    await database.run(sql())
    task = asyncio.create_task(database.run(sql("select 1 from pg_sleep(30)"), single=True))
    while database._idle:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < PROMPT_S
    assert not database._idle


async def test_a_late_cancel_request_reaches_no_other_statement(database: PostgresDatabase) -> None:
    """The request travels by itself and may arrive after the end of its statement: 100 tasks are cancelled just as
    theirs ends, and what follows them is not cancelled."""
    for number in range(100):
        task = asyncio.create_task(database.run(sql("select 1"), single=True))
        for _ in range(2 + number % 8):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.run(sql("select 1 from pg_sleep(0.001)"), single=True)


async def test_what_was_given_up_does_not_go_on_at_the_server(pg_database: str, database: PostgresDatabase) -> None:
    """A server that is slow, or waits for a lock, would keep a process for every attempt."""
    with pytest.raises(UnreachableError, match="no reply within 2 s"):
        await database.run(sql("select 1 from pg_sleep(600)"))
    with psycopg.connect(pg_database, autocommit=True) as other:
        until = time.monotonic() + 10
        while other.execute(
            "select 1 from pg_stat_activity where datname = current_database() and query like '%pg_sleep(600)%' "
            "and state = 'active' and pid <> pg_backend_pid()"
        ).fetchall():
            assert time.monotonic() < until
    assert await database.run(sql()) == 1


async def test_a_statement_with_a_time_of_its_own_has_it(database: PostgresDatabase) -> None:
    assert await database.run(sql("select 1 from pg_sleep(3)"), statement_timeout_s=20.0) == 1
    with pytest.raises(psycopg.errors.QueryCanceled):
        await database.run(sql("select 1 from pg_sleep(30)"), statement_timeout_s=0.2)


async def test_several_statements_may_take_longer_than_one(database: PostgresDatabase) -> None:
    def script() -> Script[int]:
        for _ in range(3):
            yield Statement("select pg_sleep(1)", {})
        return 1

    assert await database.run(script()) == 1


async def test_a_loop_that_was_busy_reads_the_answer(database: PostgresDatabase) -> None:
    """As after a freeze of the process: the time that goes by for this process alone is nobody else's."""
    task = asyncio.create_task(database.run(sql("select 1 from pg_sleep(0.5)")))
    while not database._lent:
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    time.sleep(2 * ANSWER_S)
    assert await task == 1


async def test_closing_waits_for_no_answer(proxy: HangingProxy, database: PostgresDatabase) -> None:
    await asyncio.gather(*[database.run(sql()) for _ in range(3)])
    proxy.hang()
    began = time.monotonic()
    await database.aclose()
    assert time.monotonic() - began < PROMPT_S


def test_tcp_notices_a_peer_that_is_gone_unless_the_url_says_otherwise() -> None:
    ours = connecting("postgresql://127.0.0.1/x", 10.0, 5.0)
    assert (ours["keepalives"], ours["keepalives_idle"], ours["keepalives_count"]) == (1, 2, 3)
    assert (ours["tcp_user_timeout"], ours["connect_timeout"]) == (10_000, 5)
    given = "postgresql://127.0.0.1/x?keepalives=0&tcp_user_timeout=77&connect_timeout=9"
    theirs = connecting(given, 10.0, 5.0)
    assert {name: str(value) for name, value in theirs.items()} | conninfo_to_dict(given) == {
        name: str(value) for name, value in theirs.items()
    }
    assert connecting("postgresql://127.0.0.1/x", 3600.0, 5.0)["tcp_user_timeout"] == 30_000


def test_the_bound_leaves_time_in_the_lease() -> None:
    for lease_s, send_timeout_s in [(15.0, 5.0), (60.0, 5.0), (6.0, 1.0), (9.0, 8.0), (4.0, 0.0), (300.0, 0.0)]:
        assert 1.25 * answer_s(lease_s, send_timeout_s) <= lease_s
