"""What an append costs the caller on PostgreSQL: its statements and its round trips, counted on the wire.

psycopg prepares a text the sixth time a connection uses it, which is one more request, once; so each connection is
warmed up first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from relevo import Outbox
from relevo.errors import NotInTransactionError
from tests.support.callers import POSTGRES, rows, settle, sqlalchemy_url
from tests.support.events import OrderPlaced
from tests.support.round_trips import RoundTrips, round_trips
from tests.support.schema import create_schema

outbox = Outbox()
ORDER = OrderPlaced(1)
WARM = 8


@pytest.fixture
def wire(pg_database: str) -> Iterator[RoundTrips]:
    create_schema(pg_database)
    with round_trips(pg_database) as proxy:
        yield proxy


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(default=0)


@pytest.mark.parametrize("kind", POSTGRES)
async def test_an_append_is_one_round_trip(kind: str, wire: RoundTrips) -> None:
    """One event, one scheduled event, two or 999 events: one statement and one wait each, on every handle."""
    acts: list[Any] = [
        lambda handle, many: outbox.add(handle, ORDER),
        lambda handle, many: outbox.add(handle, ORDER, after=timedelta(hours=1)),
        lambda handle, many: outbox.add_many(handle, [ORDER] * many),
    ]
    async with POSTGRES[kind](wire.url) as caller:
        for act in acts:
            for _ in range(WARM):
                await settle(act(caller.handle, 2))
            for many in (2, 999):
                wire.counted.reset()
                await settle(act(caller.handle, many))
                assert (len(wire.counted.asked), wire.counted.executed) == (1, 1)
        await caller.commit()
    assert len(rows(wire.url)) == (WARM + 2) + WARM * 2 + 2 + 999


@pytest.mark.parametrize("kind", POSTGRES)
async def test_thousands_are_one_statement(kind: str, wire: RoundTrips) -> None:
    """COPY where psycopg is in the caller's hand, one INSERT elsewhere."""
    async with POSTGRES[kind](wire.url) as caller:
        await settle(outbox.add_many(caller.handle, [ORDER] * 2))  # the driver's BEGIN with it
        wire.counted.reset()
        await settle(outbox.add_many(caller.handle, [ORDER] * 2500))
        assert wire.counted.executed == 1
        if _verbs(wire):  # asyncpg prepares a text once
            assert _verbs(wire) == (["copy"] if kind.startswith("psycopg") else ["insert"])
        await caller.commit()


def test_in_a_pipeline_an_append_waits_for_nothing(wire: RoundTrips) -> None:
    """Any number of appends, alone or many, and the commit: one round trip in all."""
    with psycopg.connect(wire.url) as connection:
        _warm(connection)
        connection.execute("select 1")  # the driver begins, and waits for that
        with connection.pipeline():
            wire.counted.reset()
            for _ in range(3):
                outbox.add(connection, ORDER)
            outbox.add_many(connection, [ORDER] * 2)
            assert wire.counted.asked == []
            connection.commit()
            assert wire.counted.asked == ["sync"]
    assert len(rows(wire.url)) == WARM + 3 + (WARM + 1) * 2


def test_questions_in_a_pipeline_are_answered(wire: RoundTrips) -> None:
    """`find` and `cancel` need an answer, so they wait for one: what is there is found, by its own transaction too."""
    with psycopg.connect(wire.url) as connection, connection.pipeline():
        event_id = outbox.add(connection, ORDER)
        later = outbox.add(connection, ORDER, after=timedelta(hours=1))
        assert outbox.find(connection, event_id)
        assert outbox.find(connection, later)
        assert outbox.cancel(connection, later)
        assert not outbox.find(connection, later)


async def test_in_an_asynchronous_pipeline_an_append_waits_for_nothing(wire: RoundTrips) -> None:
    """The same on psycopg's AsyncConnection."""
    async with await psycopg.AsyncConnection.connect(wire.url) as connection:
        for _ in range(WARM):
            await outbox.add(connection, ORDER)
        await connection.commit()
        await connection.execute("select 1")  # the driver begins, and waits for that
        async with connection.pipeline():
            wire.counted.reset()
            for _ in range(3):
                await outbox.add(connection, ORDER)
            assert wire.counted.asked == []
            await connection.commit()
            assert wire.counted.asked == ["sync"]
    assert len(rows(wire.url)) == WARM + 3


def test_in_a_pipeline_below_sqlalchemy(wire: RoundTrips) -> None:
    """A pipeline of the driver's own, opened below a session: the append waits for nothing there either."""
    engine = create_engine(sqlalchemy_url(wire.url, "psycopg"))
    with Session(engine) as session:
        for _ in range(WARM):
            outbox.add(session, ORDER)
        driver: Any = session.connection().connection.driver_connection
        with driver.pipeline():
            wire.counted.reset()
            outbox.add(session, ORDER)
            outbox.add(session, ORDER)
            assert wire.counted.asked == []
            session.commit()
            assert wire.counted.asked == ["sync", "sync"]  # the commit, and the pool's rollback
    engine.dispose()
    assert len(rows(wire.url)) == WARM + 2


def test_a_session_is_flushed_first_and_nothing_is_asked_beside(wire: RoundTrips) -> None:
    """One INSERT of the flush, one UPDATE, and the append behind them: three round trips, in this order."""
    engine = create_engine(sqlalchemy_url(wire.url, "psycopg"))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(order := Order(id=1))
        session.flush()
        wire.counted.reset()
        order.version = 1
        session.add(Order(id=2))
        outbox.add(session, ORDER)
        assert sorted(_verbs(wire)[:2]) == ["insert", "update"]
        assert "relevo_outbox" in wire.counted.texts[-1]
        assert len(wire.counted.asked) == 3
        session.commit()
    engine.dispose()


def test_an_error_in_a_pipeline_surfaces_at_the_commit(wire: RoundTrips) -> None:
    """No table: the commit raises, and what stood before in the transaction is not there."""
    with psycopg.connect(wire.url) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        with connection.pipeline():
            outbox.add(connection, ORDER)
            Outbox(prefix="nowhere_").add(connection, ORDER)
            connection.commit()
    assert rows(wire.url) == []


def test_an_error_in_a_pipeline_surfaces_where_a_result_is_read(wire: RoundTrips) -> None:
    """No table: the next statement whose result is wanted raises, long before the commit."""
    with psycopg.connect(wire.url) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        with connection.pipeline():
            Outbox(prefix="nowhere_").add(connection, ORDER)
            connection.execute("select 1").fetchone()
            raise AssertionError("it did not surface")
    assert rows(wire.url) == []


def test_autocommit_in_a_pipeline(wire: RoundTrips) -> None:
    """The driver would commit at the pipeline's end: refused, also with statements under way that hide the state, and
    then nothing of the pipeline stays. A transaction() or a BEGIN of the caller's own is accepted."""
    with psycopg.connect(wire.url, autocommit=True) as connection:
        connection.execute("create table orders (id int)")
        with pytest.raises(NotInTransactionError), connection.pipeline():
            outbox.add(connection, ORDER)
        with pytest.raises(NotInTransactionError), connection.pipeline():
            connection.execute("insert into orders values (1)")
            outbox.add(connection, ORDER)
        assert connection.execute("select count(*) from orders").fetchone() == (0,)
        with connection.pipeline(), connection.transaction():
            outbox.add(connection, ORDER)
            connection.execute("insert into orders values (2)")
            outbox.add(connection, ORDER)
        connection.execute("begin")
        with connection.pipeline():
            connection.execute("insert into orders values (3)")
            outbox.add(connection, ORDER)
        connection.rollback()
        assert connection.execute("select id from orders").fetchall() == [(2,)]
    assert len(rows(wire.url)) == 2


async def test_autocommit_in_an_asynchronous_pipeline(wire: RoundTrips) -> None:
    """The same on psycopg's AsyncConnection, when awaited."""
    async with await psycopg.AsyncConnection.connect(wire.url, autocommit=True) as connection:
        await connection.execute("create table orders (id int)")
        with pytest.raises(NotInTransactionError):
            async with connection.pipeline():
                await connection.execute("insert into orders values (1)")
                await outbox.add(connection, ORDER)
        async with connection.pipeline(), connection.transaction():
            await connection.execute("insert into orders values (2)")
            await outbox.add(connection, ORDER)
        assert await (await connection.execute("select id from orders")).fetchall() == [(2,)]
    assert len(rows(wire.url)) == 1


def _warm(connection: psycopg.Connection[Any]) -> None:
    for _ in range(WARM):
        outbox.add(connection, ORDER)
        outbox.add_many(connection, [ORDER] * 2)
    connection.commit()


def _verbs(wire: RoundTrips) -> list[str]:
    """What the statements do, their comments left out."""
    lines = [[line for line in text.splitlines() if not line.startswith("--")] for text in wire.counted.texts]
    return [statement[0].split()[0].lower() for statement in lines]
