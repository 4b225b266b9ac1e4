"""Where the driver would commit the row by itself, the outbox refuses; an implicit begin is fine (HARD 23)."""

from __future__ import annotations

import json
import secrets
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from relevo import Outbox
from relevo.errors import ConfigError, MisuseError, NotInTransactionError, RefusedError, SchemaError, TooLargeError
from tests.support.callers import rows, sqlalchemy_url
from tests.support.events import OrderPlaced
from tests.support.schema import create_schema

outbox = Outbox()
ORDER = OrderPlaced(1)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(default=0)


def become_nobody(connection: psycopg.Connection[Any]) -> None:
    """Take a role without rights until the transaction ends; the role goes with its rollback."""
    name = f"nobody_{secrets.token_hex(8)}"
    connection.execute(f"create role {name}".encode())
    connection.execute(f"set local role {name}".encode())


@pytest.fixture
def pg(pg_database: str) -> str:
    create_schema(pg_database)
    return pg_database


@pytest.fixture
def lite(tmp_path: Path) -> str:
    path = str(tmp_path / "app.db")
    create_schema(path)
    return path


async def test_psycopg_autocommit(pg: str) -> None:
    """Refused sync and async while idle; accepted inside `transaction()`, and where the outbox was told to allow it."""
    with psycopg.connect(pg, autocommit=True) as connection:
        with pytest.raises(NotInTransactionError):
            outbox.add(connection, ORDER)
        with connection.transaction():
            outbox.add(connection, ORDER)
        Outbox(allow_autocommit=True).add(connection, ORDER)
    async with await psycopg.AsyncConnection.connect(pg, autocommit=True) as connection:
        with pytest.raises(NotInTransactionError):
            outbox.add(connection, ORDER)  # at the call, before the await
        async with connection.transaction():
            await outbox.add(connection, ORDER)
    assert len(rows(pg)) == 3


async def test_asyncpg_outside_a_transaction(pg: str) -> None:
    """asyncpg commits every statement outside `transaction()`: refused at the call, also if it ended meanwhile."""
    connection = await asyncpg.connect(pg)
    try:
        with pytest.raises(NotInTransactionError):
            outbox.add(connection, ORDER)
        async with connection.transaction():
            pending = outbox.add(connection, ORDER)
        with pytest.raises(NotInTransactionError):
            await pending
        async with connection.transaction():
            await outbox.add(connection, ORDER)
    finally:
        await connection.close()
    assert len(rows(pg)) == 1


@pytest.mark.parametrize("where", ["engine", "connection"])
@pytest.mark.parametrize("driver", ["psycopg", "pysqlite"])
def test_sqlalchemy_autocommit(where: str, driver: str, pg: str, lite: str) -> None:
    """AUTOCOMMIT on the engine or on one connection is refused, for sessions and connections."""
    url = pg if driver == "psycopg" else lite
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if where == "engine" else {}
    engine = create_engine(sqlalchemy_url(url, driver), **options)
    with engine.connect() as connection:
        if where == "connection":
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(NotInTransactionError):
            outbox.add(connection, ORDER)
        with Session(connection) as session, pytest.raises(NotInTransactionError):
            outbox.add(session, ORDER)
    engine.dispose()
    assert rows(url) == []


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "aiosqlite"])
async def test_sqlalchemy_async_autocommit(driver: str, pg: str, lite: str) -> None:
    """The same on the async engines, when awaited."""
    url = lite if driver == "aiosqlite" else pg
    engine = create_async_engine(sqlalchemy_url(url, driver), isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(NotInTransactionError):
            await outbox.add(session, ORDER)
    await engine.dispose()
    assert rows(url) == []


def test_sqlalchemy_begin_emitted_by_the_application(lite: str) -> None:
    """SQLAlchemy's own recipe for SQLite (isolation_level=None, BEGIN in the "begin" event) is a transaction."""
    engine = create_engine(sqlalchemy_url(lite, "pysqlite"))

    @event.listens_for(engine, "connect")
    def leave_it_to_us(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with Session(engine) as session:
        outbox.add(session, ORDER)
        session.rollback()
    assert rows(lite) == []
    with Session(engine) as session, session.begin():
        outbox.add(session, ORDER)
    engine.dispose()
    assert len(rows(lite)) == 1


def test_sqlite3_modes(lite: str) -> None:
    """isolation_level=None is refused until BEGIN; the default mode begins by itself and is accepted."""
    connection = sqlite3.connect(lite, isolation_level=None)
    with pytest.raises(NotInTransactionError):
        outbox.add(connection, ORDER)
    connection.execute("begin")
    outbox.add(connection, ORDER)
    connection.execute("rollback")
    connection.close()
    assert rows(lite) == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit= since Python 3.12")
def test_sqlite3_autocommit_attribute(lite: str) -> None:
    """autocommit=True is refused; autocommit=False is always in a transaction."""
    for autocommit in (True, False):
        connection = sqlite3.connect(lite, autocommit=autocommit)  # type: ignore[call-overload, unused-ignore]
        if autocommit:
            with pytest.raises(NotInTransactionError):
                outbox.add(connection, ORDER)
        else:
            outbox.add(connection, ORDER)
            connection.commit()
        connection.close()
    assert len(rows(lite)) == 1


def test_schema_and_prefix(pg_database: str, tmp_path: Path) -> None:
    """Tables in another schema with another prefix are used, and only those."""
    create_schema(pg_database, schema="app", prefix="ob_")
    there = Outbox(schema="app", prefix="ob_")
    with psycopg.connect(pg_database) as connection:
        event_id = there.add(connection, ORDER)
        assert there.find(connection, event_id)
    assert len(rows(pg_database, "app.ob_outbox")) == 1
    with psycopg.connect(pg_database) as connection, pytest.raises(SchemaError, match="relevo migrate"):
        outbox.add(connection, ORDER)
    path = str(tmp_path / "app.db")
    create_schema(path, prefix="ob_")
    connection = sqlite3.connect(path)
    Outbox(prefix="ob_").add(connection, ORDER)
    with pytest.raises(ConfigError, match="prefix"):
        there.add(connection, ORDER)
    with pytest.raises(SchemaError, match="relevo migrate") as caught:
        outbox.add(connection, ORDER)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    connection.close()


async def test_psycopg_settings_of_the_caller(pg: str) -> None:
    """Row factory, raw cursors and switched-off prepared statements of the caller are left alone."""
    with psycopg.connect(pg, row_factory=dict_row, prepare_threshold=None, cursor_factory=psycopg.RawCursor) as one:
        for _ in range(8):
            assert outbox.find(one, outbox.add(one, ORDER))
        assert one.execute("select count(*) as n from pg_prepared_statements").fetchone() == {"n": 0}
    with psycopg.connect(pg, cursor_factory=psycopg.ClientCursor) as two:
        assert outbox.find(two, outbox.add(two, ORDER))
        assert len(outbox.add_many(two, [ORDER, ORDER])) == 2
    async with await psycopg.AsyncConnection.connect(pg, row_factory=dict_row) as three:
        assert await outbox.find(three, await outbox.add(three, ORDER))
    lines = rows(pg)
    assert len(lines) == 12


async def test_asyncpg_with_a_json_codec_of_the_application(pg: str) -> None:
    """A codec that the application put on jsonb does not encode our headers twice."""
    connection = await asyncpg.connect(pg)
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    async with connection.transaction():
        await outbox.add(connection, ORDER, headers={"tenant": "a"})
        await outbox.add_many(connection, [ORDER, ORDER])
    await connection.close()
    assert [row["headers"] for row in rows(pg)] == [{"tenant": "a"}, None, None]


def test_no_right_and_read_only_by_sqlstate(pg: str) -> None:
    """A role without the grant, and a read-only transaction: told by SQLSTATE, in plain words, original kept."""
    with psycopg.connect(pg) as connection:
        become_nobody(connection)
        with pytest.raises(SchemaError, match="grants") as caught:
            outbox.add(connection, ORDER)
        assert isinstance(caught.value.__cause__, psycopg.errors.InsufficientPrivilege)
        connection.rollback()
        connection.read_only = True
        with pytest.raises(SchemaError, match="read-only") as caught:
            outbox.add(connection, ORDER)
        assert isinstance(caught.value.__cause__, psycopg.errors.ReadOnlySqlTransaction)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_missing_table_through_sqlalchemy(driver: str, pg_database: str) -> None:
    """SQLAlchemy wraps the driver's error; the SQLSTATE is found inside."""
    engine = create_async_engine(sqlalchemy_url(pg_database, driver))
    async with engine.connect() as connection:
        with pytest.raises(SchemaError, match="relevo migrate"):
            await outbox.add(connection, ORDER)
    await engine.dispose()


async def test_missing_table_on_asyncpg(pg_database: str) -> None:
    """asyncpg's own error has the SQLSTATE too."""
    connection = await asyncpg.connect(pg_database)
    async with connection.transaction():
        with pytest.raises(SchemaError, match="relevo migrate"):
            await outbox.add(connection, ORDER)
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await outbox.add(connection, ORDER)  # the driver's own error stays the driver's own
    await connection.close()


def test_sqlite_read_only_file(lite: str) -> None:
    """A database opened read-only, by SQLite's result code."""
    connection = sqlite3.connect(f"file:{lite}?mode=ro", uri=True)
    with pytest.raises(SchemaError, match="read-only"):
        outbox.add(connection, ORDER)
    connection.close()


def test_refused_data_writes_nothing(pg: str) -> None:
    """FAILURES rows 19 and 38: too large, NUL, lone surrogate, NaN are refused at the append, with path or sizes; the
    transaction is untouched and goes on."""
    with psycopg.connect(pg) as connection:
        with pytest.raises(TooLargeError, match=r"1,000,0\d\d bytes.* limit is 1,000,000"):
            outbox.add(connection, OrderPlaced(1, "x" * 1_000_000))
        with pytest.raises(TooLargeError, match="limit is 20"):
            Outbox(message_bytes_max=20).add(connection, OrderPlaced(1, "something"))
        for bad, path in [
            ({"a": "x\0y"}, r"\$\.note\['a'\]"),
            (["ok", "\ud800"], r"\$\.note\[1\]"),
            (float("nan"), r"\$\.note"),
            ([float("inf")], r"\$\.note\[0\]"),
            (object(), r"\$\.note"),
        ]:
            with pytest.raises(RefusedError, match=path):
                outbox.add(connection, OrderPlaced(1, bad))
        for header in ({"Tenant": "a"}, {"ce_id": "a"}, {"tenant": "a\0"}):
            with pytest.raises(RefusedError, match="headers"):
                outbox.add(connection, ORDER, headers=header)
        with pytest.raises(RefusedError):  # all are checked before the first is written
            outbox.add_many(connection, [ORDER, OrderPlaced(2, "\0")])
        outbox.add(connection, ORDER)
    assert len(rows(pg)) == 1


def test_what_is_no_handle() -> None:
    """An engine, a URL, None: MisuseError names what is accepted. Another database: ConfigError."""
    engine = create_engine("sqlite://")
    for wrong in (engine, "postgresql://", None):
        with pytest.raises(MisuseError, match="Accepted: SQLAlchemy Session"):
            outbox.add(wrong, ORDER)  # type: ignore[call-overload]
    with pytest.raises(MisuseError, match="no single database"):
        outbox.add(Session(), ORDER)


async def test_a_session_without_a_database_when_awaited() -> None:
    """The same for an AsyncSession."""
    with pytest.raises(MisuseError, match="no single database"):
        await outbox.add(AsyncSession(), ORDER)


def test_session_bound_per_class(pg: str) -> None:
    """A session bound per class cannot decide; the connection it gives for a class can be passed."""
    engine = create_engine(sqlalchemy_url(pg, "psycopg"))
    Base.metadata.create_all(engine)
    with Session(binds={Order: engine}) as session, session.begin():
        session.add(Order(id=1))
        with pytest.raises(MisuseError, match=r"session\.flush"):
            outbox.add(session, ORDER)
        session.flush()
        outbox.add(session.connection(bind_arguments={"mapper": Order}), ORDER)
    engine.dispose()
    assert len(rows(pg)) == 1


def test_savepoint_rollback_takes_the_event_with_it(pg: str) -> None:
    """Rolled back to a savepoint: the event inside is gone, the one outside stays."""
    engine = create_engine(sqlalchemy_url(pg, "psycopg"))
    with Session(engine) as session, session.begin():
        kept = outbox.add(session, ORDER)
        savepoint = session.begin_nested()
        outbox.add(session, OrderPlaced(2))
        savepoint.rollback()
    engine.dispose()
    assert [row["event_id"] for row in rows(pg)] == [kept]


def test_seq_follows_the_lock_of_the_aggregate(pg: str) -> None:
    """Pending changes are flushed before the append takes its `seq`. A second session that changes the same row waits
    in its flush, behind the lock, so its `seq` is later, although it asked while the first had not committed."""
    engine = create_engine(sqlalchemy_url(pg, "psycopg"))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Order(id=1))

    pid: list[int] = []

    def second() -> None:
        with Session(engine) as session, session.begin():
            pid.append(session.scalars(text("select pg_backend_pid()")).one())
            order = session.get_one(Order, 1)
            order.version += 10
            outbox.add(session, OrderPlaced(1, "second"))

    with Session(engine) as session, session.begin():
        session.get_one(Order, 1).version = 1
        session.flush()  # the lock is ours; our own event comes only after the other one waits
        thread = threading.Thread(target=second)
        thread.start()
        _wait_until_blocked(pg, pid)
        outbox.add(session, OrderPlaced(1, "first"))
    thread.join(30)
    assert not thread.is_alive()
    engine.dispose()
    assert [b"first" in row["payload"] for row in rows(pg)] == [True, False]


def _wait_until_blocked(url: str, pid: list[int]) -> None:
    deadline = time.monotonic() + 20
    with psycopg.connect(url, autocommit=True) as watcher:
        while time.monotonic() < deadline:
            if pid and watcher.execute("select cardinality(pg_blocking_pids(%s))", pid).fetchone() == (1,):
                return
    raise AssertionError("the second session never waited for the first one's lock")


@pytest.mark.parametrize("count", [2, 1000])
async def test_many_by_insert_and_by_copy(count: int, pg: str) -> None:
    """Both ways of writing many carry what is special to text formats, roll back, and explain a missing right."""
    events = [OrderPlaced(n, "tab\tline\nback\\slash \\N %s :name") for n in range(count)]
    with psycopg.connect(pg) as connection:
        outbox.add_many(connection, events)
        connection.rollback()
        become_nobody(connection)
        with pytest.raises(SchemaError, match="grants"):
            outbox.add_many(connection, events)
        connection.rollback()
        outbox.add_many(connection, events)
    async with await psycopg.AsyncConnection.connect(pg) as connection:
        await outbox.add_many(connection, events)
    written = rows(pg)
    assert [json.loads(row["payload"]) for row in written] == 2 * [
        {"order_id": each.order_id, "note": each.note} for each in events
    ]
    assert {(row["headers"], row["aggregate_id"], row["content_type"]) for row in written} == {
        (None, None, "application/json")
    }


def test_many_inside_a_pipeline(pg: str) -> None:
    """COPY does not go through psycopg's pipeline mode; the rows go by INSERT there."""
    with psycopg.connect(pg) as connection, connection.pipeline():
        outbox.add_many(connection, [ORDER] * 1000)
    assert len(rows(pg)) == 1000
