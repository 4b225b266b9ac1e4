"""The transaction a handler gets is the one that holds its inbox row, for every kind of ``tx`` and every way to run.

PostgreSQL says so itself: the ``xmin`` of what the handler wrote is the ``xmin`` of the inbox row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from relevo import Backoff, Consumer, Event
from relevo.errors import ConfigError
from tests.support.consumers import held, inbox, insert, order, running, settled
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store

ASYNC = (AsyncSession, AsyncConnection, psycopg.AsyncConnection, asyncpg.Connection)
KINDS = [Session, Connection, AsyncSession, AsyncConnection, psycopg.Connection, psycopg.AsyncConnection]
KINDS += [asyncpg.Connection]
WAYS = ["alone", "batch", "no pipeline"]
COUNT = 12
BAD = 5


class Base(DeclarativeBase): ...


class Row(Base):
    __tablename__ = "mapped_effect"
    number: Mapped[int] = mapped_column(primary_key=True)


def name_of(value: Any) -> str:
    return f"{value.__module__.partition('.')[0]}-{value.__name__}" if isinstance(value, type) else str(value)


def url(store: Store, driver: str) -> str:
    return store.url.replace("postgresql:", f"postgresql+{driver}:")


def prepared(store: Store) -> None:
    store.do("create table effect (effect_seq bigint generated always as identity, number integer, what text)")
    store.do("create table mapped_effect (number integer primary key)")


async def work(
    store: Store,
    kind: Any,
    way: str,
    act: Callable[[Event[OrderPlaced], Any], Any],
    *,
    tx: Any = None,
    count: int = COUNT,
) -> None:
    """``count`` messages with keys of their own, each handled by ``act``, which may return an awaitable."""
    consumer = Consumer(
        "billing",
        ["shop.order"],
        tx=tx,
        retry=Backoff(attempts=1),
        batch=1 if way == "alone" else None,
        pipeline=way != "no pipeline",
    )

    def sync(event: Event[OrderPlaced], tx: Any) -> None:
        act(event, tx)

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        done = act(event, tx)
        if hasattr(done, "__await__"):
            await done

    handler = asynchronous if kind in ASYNC else sync
    handler.__annotations__["tx"] = kind
    consumer.on(OrderPlaced)(handler)
    broker = FakeBroker()
    broker.append(*(order(number, f"k{number}") for number in range(count)))
    async with running(consumer, store, broker):
        await settled(broker)


def written(event: Event[OrderPlaced], tx: Any) -> Any:
    return insert(tx, event.data.order_id, str(event.id))


def apart(store: Store) -> list[Any]:
    """Effects whose inbox row was written by another transaction, or by none."""
    return store.query(
        "select e.number from effect e left join relevo_inbox i on cast(i.event_id as text) = e.what "
        "where i.event_id is null or cast(i.xmin as text) <> cast(e.xmin as text)"
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS, ids=name_of)
async def test_effect_and_inbox_row_are_of_one_transaction(pg_store: Store, kind: Any, way: str) -> None:
    """Relevo's own connections, every kind of ``tx``."""
    prepared(pg_store)
    await work(pg_store, kind, way, written)
    assert apart(pg_store) == []
    assert pg_store.query("select count(*), count(distinct number) from effect") == [(COUNT, COUNT)]
    assert len(inbox(pg_store)) == COUNT


class Routing(Session):
    """SQLAlchemy's recipe, with one engine: what is flushed goes another way than what is read."""

    engine: Any = None

    def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Any:
        return self.engine if self._flushing else super().get_bind(mapper=mapper, clause=clause, **options)


def _engine(store: Store, **options: Any) -> Any:
    return create_engine(url(store, "psycopg"), **options)


def _async_engine(store: Store, **options: Any) -> Any:
    return create_async_engine(url(store, "asyncpg"), **options)


def _routing(store: Store) -> Any:
    engine = _engine(store)
    return sessionmaker(engine, class_=type("Routed", (Routing,), {"engine": engine}))


def _bound(store: Store) -> Any:
    engine = _engine(store)
    return sessionmaker(engine, binds={Row: engine})


GIVEN: dict[str, tuple[Any, Callable[[Store], Any]]] = {
    "sessionmaker": (Session, lambda store: sessionmaker(_engine(store))),
    "sessionmaker with binds to its engine": (Session, _bound),
    "session class with get_bind to its engine": (Session, _routing),
    "sessionmaker without autobegin": (Session, lambda store: sessionmaker(_engine(store), autobegin=False)),
    "engine": (Connection, _engine),
    "psycopg2-like isolation": (Connection, lambda store: _engine(store, isolation_level="REPEATABLE READ")),
    "async_sessionmaker": (AsyncSession, lambda store: async_sessionmaker(_async_engine(store))),
    "async engine": (AsyncConnection, _async_engine),
    "async engine on psycopg": (AsyncConnection, lambda store: create_async_engine(url(store, "psycopg"))),
    "factory": (psycopg.Connection, lambda store: lambda: psycopg.connect(store.url)),
    "factory in autocommit": (psycopg.Connection, lambda store: lambda: psycopg.connect(store.url, autocommit=True)),
    "factory with client-side cursors": (
        psycopg.Connection,
        lambda store: lambda: psycopg.connect(store.url, cursor_factory=psycopg.ClientCursor),
    ),
    "async factory": (psycopg.AsyncConnection, lambda store: lambda: psycopg.AsyncConnection.connect(store.url)),
    "asyncpg factory": (asyncpg.Connection, lambda store: lambda: asyncpg.connect(store.url)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", GIVEN)
async def test_what_the_application_gives_leads_there_too(pg_store: Store, given: str, way: str) -> None:
    """ORM work and statements, over whatever ``tx=`` was given that is not refused."""
    prepared(pg_store)
    kind, make = GIVEN[given]

    def act(event: Event[OrderPlaced], tx: Any) -> Any:
        if kind in (Session, AsyncSession):
            tx.add(Row(number=event.data.order_id))
        return written(event, tx)

    await work(pg_store, kind, way, act, tx=make(pg_store))
    assert apart(pg_store) == []
    assert pg_store.query("select count(*), count(distinct number) from effect") == [(COUNT, COUNT)]
    if kind in (Session, AsyncSession):
        assert pg_store.query(
            "select count(*) from mapped_effect m join effect e using (number) "
            "where cast(m.xmin as text) = cast(e.xmin as text)"
        ) == [(COUNT,)]


@pytest.mark.parametrize("way", WAYS)
async def test_a_pool_leads_there_too(pg_store: Store, way: str) -> None:
    prepared(pg_store)
    pool = await asyncpg.create_pool(pg_store.url, min_size=1, max_size=4)
    try:
        await work(pg_store, asyncpg.Connection, way, written, tx=pool)
    finally:
        await pool.close()
    assert apart(pg_store) == []
    assert pg_store.query("select count(*) from effect") == [(COUNT,)]


def _two(store: Store) -> Any:
    return sessionmaker(_engine(store), binds={Row: _engine(store)})


def _replica(store: Store) -> Any:
    replica = _engine(store)

    class Replica(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Any:
            return super().get_bind(mapper=mapper, clause=clause, **options) if self._flushing else replica

    return sessionmaker(_engine(store), class_=Replica)


def _busy(store: Store) -> Any:
    def make() -> Any:
        connection = psycopg.connect(store.url)
        connection.execute("select 1")
        return connection

    return make


REFUSED: dict[str, tuple[Any, Callable[[Store], Any], str]] = {
    "AUTOCOMMIT engine": (Connection, lambda store: _engine(store, isolation_level="AUTOCOMMIT"), "autocommit"),
    "AUTOCOMMIT option": (
        Connection,
        lambda store: _engine(store).execution_options(isolation_level="AUTOCOMMIT"),
        "autocommit",
    ),
    "AUTOCOMMIT sessions": (
        Session,
        lambda store: sessionmaker(_engine(store, isolation_level="AUTOCOMMIT")),
        "autocommit",
    ),
    "AUTOCOMMIT asyncpg": (
        AsyncSession,
        lambda store: async_sessionmaker(_async_engine(store, isolation_level="AUTOCOMMIT")),
        "autocommit",
    ),
    "AUTOCOMMIT async psycopg": (
        AsyncConnection,
        lambda store: create_async_engine(url(store, "psycopg"), isolation_level="AUTOCOMMIT"),
        "autocommit",
    ),
    "binds to another engine": (Session, _two, "Row"),
    "reads from a replica": (Session, _replica, "replica"),
    "two phases": (Session, lambda store: sessionmaker(_engine(store), twophase=True), "twophase"),
    "another kind": (
        psycopg.Connection,
        lambda store: lambda: object(),
        "builtins.object, and its handlers want a psycopg",
    ),
    "asyncpg for psycopg": (
        psycopg.AsyncConnection,
        lambda store: lambda: asyncpg.connect(store.url),
        "want a psycopg",
    ),
    "psycopg for asyncpg": (
        asyncpg.Connection,
        lambda store: lambda: psycopg.AsyncConnection.connect(store.url),
        "want an asyncpg",
    ),
    "nothing asyncpg": (asyncpg.Connection, lambda store: lambda: object(), "want an asyncpg"),
    "an open transaction": (psycopg.Connection, _busy, "open already"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_does_not_lead_there_is_refused_at_the_start(pg_store: Store, case: str) -> None:
    """With words that say what to change, before a message is taken."""
    prepared(pg_store)
    kind, make, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        await work(pg_store, kind, "batch", written, tx=make(pg_store))
    assert inbox(pg_store) == {}


def _raw(tx: Any) -> Any:
    """The driver's connection below a SQLAlchemy session or connection."""
    connection = tx.connection() if isinstance(tx, Session) else tx
    return connection.connection.driver_connection


async def _of_session(tx: AsyncSession, act: Callable[[Session], Any]) -> None:
    await tx.run_sync(act)


async def _begin_block(tx: Any) -> None:
    async with tx.begin():
        pass


def _block(tx: Any) -> None:
    with tx.begin():
        pass


async def _stream(tx: Any) -> None:
    async with tx.cursor() as cursor:
        async for _ in cursor.stream("commit"):
            pass


ENDINGS: dict[str, tuple[Any, Callable[[Any], Any]]] = {}
for _kind in (psycopg.Connection, psycopg.AsyncConnection):
    for _name, _query in {
        "plain": "commit",
        "comment": "/* app */ commit",
        "line comment": "-- app\nrollback",
        "bytes": b" COMMIT",
        "sql.SQL": sql.SQL("commit"),
        "composed": sql.SQL("{} work").format(sql.SQL("end")),
        "behind another": "select 1; commit",
        "and begun again": "commit; begin",
    }.items():
        ENDINGS[f"{_kind.__name__} {_name}"] = (_kind, lambda tx, query=_query: tx.execute(query))
    ENDINGS[f"{_kind.__name__} commit()"] = (_kind, lambda tx: tx.commit())
    ENDINGS[f"{_kind.__name__} rollback()"] = (_kind, lambda tx: tx.rollback())
    ENDINGS[f"{_kind.__name__} close()"] = (_kind, lambda tx: tx.close())
ENDINGS["Connection cursor"] = (psycopg.Connection, lambda tx: psycopg.Cursor(tx).execute("commit"))
ENDINGS["Connection raw cursor"] = (psycopg.Connection, lambda tx: psycopg.RawCursor(tx).execute("commit"))
for _name, _query in {
    "plain": "commit",
    "comment": "/* app */ commit",
    "two": "commit; begin",
    "abort": "abort",
}.items():
    ENDINGS[f"asyncpg {_name}"] = (asyncpg.Connection, lambda tx, query=_query: tx.execute(query))
ENDINGS["asyncpg fetch"] = (asyncpg.Connection, lambda tx: tx.fetch("/* x */ commit"))
ENDINGS["asyncpg prepare"] = (asyncpg.Connection, lambda tx: tx.prepare("commit"))
ENDINGS["asyncpg close"] = (asyncpg.Connection, lambda tx: tx.close())
ENDINGS["asyncpg reset"] = (asyncpg.Connection, lambda tx: tx.reset())
for _kind in (Session, Connection):
    for _name, _act in {
        "commit()": lambda tx: tx.commit(),
        "rollback()": lambda tx: tx.rollback(),
        "close()": lambda tx: tx.close(),
        "get_transaction().commit()": lambda tx: tx.get_transaction().commit(),
        "text": lambda tx: tx.execute(text("-- app\ncommit")),
        "two": lambda tx: tx.execute(text("select 1; commit")),
        "driver": lambda tx: _raw(tx).commit(),
        "driver cursor": lambda tx: _raw(tx).execute("/* x */ commit"),
    }.items():
        ENDINGS[f"sqlalchemy {_kind.__name__} {_name}"] = (_kind, _act)
ENDINGS["sqlalchemy Session begin()"] = (Session, _block)
ENDINGS["sqlalchemy Session connection().commit()"] = (Session, lambda tx: tx.connection().commit())
ENDINGS["sqlalchemy Session reset()"] = (Session, lambda tx: tx.reset())
ENDINGS["sqlalchemy AsyncSession begin()"] = (AsyncSession, _begin_block)
ENDINGS["sqlalchemy AsyncSession commit()"] = (AsyncSession, lambda tx: tx.commit())
ENDINGS["sqlalchemy AsyncSession inside"] = (AsyncSession, lambda tx: _of_session(tx, lambda each: each.commit()))
ENDINGS["sqlalchemy AsyncSession transaction"] = (
    AsyncSession,
    lambda tx: _of_session(tx, lambda each: each.get_transaction().commit()),
)
ENDINGS["sqlalchemy AsyncSession text"] = (AsyncSession, lambda tx: tx.execute(text("/* x */ commit")))
ENDINGS["sqlalchemy AsyncConnection commit()"] = (AsyncConnection, lambda tx: tx.commit())
ENDINGS["sqlalchemy AsyncConnection text"] = (AsyncConnection, lambda tx: tx.execute(text("/* x */ end")))
SHORT = [name for name in ENDINGS if any(word in name for word in ("comment", "begin", "get_tr", "driver", "two"))]


async def _ends(store: Store, ending: str, way: str, swallowed: bool) -> None:
    prepared(store)
    kind, end = ENDINGS[ending]

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        await insert(tx, event.data.order_id, "a")
        if event.data.order_id == BAD:
            try:
                done = end(tx)
                if hasattr(done, "__await__"):
                    await done
            except Exception:
                if not swallowed:
                    raise
        await insert(tx, event.data.order_id, "b")

    def act(event: Event[OrderPlaced], tx: Any) -> Any:
        if kind in ASYNC:
            return asynchronous(event, tx)
        insert(tx, event.data.order_id, "a")
        if event.data.order_id == BAD:
            try:
                end(tx)
            except Exception:
                if not swallowed:
                    raise
        insert(tx, event.data.order_id, "b")
        return None

    await work(store, kind, way, act)
    whole = store.query(
        "select number, string_agg(what, '' order by effect_seq) from effect group by number order by 1"
    )
    assert whole == [(number, "ab") for number in range(COUNT) if number != BAD]
    [(state, _, error_type, _)] = held(store)
    assert (state, str(error_type).startswith("relevo.errors.MisuseError")) == ("parked", True)
    assert len(inbox(store)) == COUNT - 1


@pytest.mark.parametrize("way", ["alone", "batch"])
@pytest.mark.parametrize("ending", SHORT)
async def test_a_handler_that_ends_the_transaction_harms_its_message_only(
    pg_store: Store, ending: str, way: str
) -> None:
    """Its message is parked as misuse without an effect; each neighbour has its whole effect, once."""
    await _ends(pg_store, ending, way, swallowed=False)


@pytest.mark.soak
@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_every_way_to_end_it(pg_store: Store, ending: str, way: str, swallowed: bool) -> None:
    """Also where the handler catches the error and goes on."""
    await _ends(pg_store, ending, way, swallowed)


BELOW: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "libpq": (psycopg.Connection, lambda tx: tx.pgconn.exec_(b"commit")),
    "libpq, begun again": (psycopg.Connection, lambda tx: tx.pgconn.exec_(b"commit; begin")),
    "a client-side cursor": (psycopg.Connection, lambda tx: psycopg.ClientCursor(tx).execute("commit")),
    "a client-side cursor, begun again": (
        psycopg.Connection,
        lambda tx: psycopg.ClientCursor(tx).execute("commit; begin"),
    ),
    "asyncpg's protocol": (asyncpg.Connection, lambda tx: tx._protocol.query("commit", None)),
    "asyncpg's protocol, begun again": (asyncpg.Connection, lambda tx: tx._protocol.query("commit; begin", None)),
}


@pytest.mark.parametrize("way", ["alone", "no pipeline"])
@pytest.mark.parametrize("below", BELOW)
async def test_below_all_that_is_watched(pg_store: Store, below: str, way: str) -> None:
    """What nothing refuses is noticed when it is too late to undo it: the transaction is another one than the inbox row
    was written in. No message counts as done without its whole effect, and the one at fault is parked."""
    prepared(pg_store)
    kind, end = BELOW[below]

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        await insert(tx, event.data.order_id, "a")
        if event.data.order_id == BAD:
            await end(tx)
        await insert(tx, event.data.order_id, "b")

    def act(event: Event[OrderPlaced], tx: Any) -> Any:
        if kind in ASYNC:
            return asynchronous(event, tx)
        insert(tx, event.data.order_id, "a")
        if event.data.order_id == BAD:
            end(tx)
        insert(tx, event.data.order_id, "b")
        return None

    await work(pg_store, kind, way, act)
    whole = dict(pg_store.query("select number, array_agg(distinct what order by what) from effect group by number"))
    assert {number for number, what in whole.items() if what == ["a", "b"]} >= set(range(COUNT)) - {BAD}
    assert len(inbox(pg_store)) == COUNT - 1
    [(state, _, error_type, _)] = held(pg_store)
    assert (state, str(error_type).startswith("relevo.errors.MisuseError")) == ("parked", True)


STATES = {
    "set local": ("set local app.tenant = 'acme'", True),
    "set_config": ("select set_config('app.tenant', 'acme', true)", True),
    "set": ("set app.tenant = 'acme'", False),
    "set_config, for the session": ("select set_config('app.tenant', 'acme', false)", False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS, ids=name_of)
async def test_state_of_one_handler_does_not_hold_for_another(pg_store: Store, kind: Any, state: str, way: str) -> None:
    """A tenant, role or search path that a handler sets in its transaction is seen by itself, and by nothing else."""
    query, local = STATES[state]
    if not local and kind not in (psycopg.Connection, psycopg.AsyncConnection, asyncpg.Connection):
        pytest.skip("an engine's pool keeps what a session sets: reset it in the pool's events")
    prepared(pg_store)
    seen: list[tuple[int, str]] = []
    ask = "select coalesce(current_setting('app.tenant', true), '')"

    def statement(tx: Any, query: str) -> Any:
        return tx.execute(text(query)) if type(tx).__module__.startswith("sqlalchemy") else tx.execute(query)

    async def asynchronous(event: Event[OrderPlaced], tx: Any) -> None:
        number = event.data.order_id
        if number == BAD:
            await statement(tx, query)
        if kind is asyncpg.Connection:
            seen.append((number, await tx.fetchval(ask)))
        else:
            result = await statement(tx, ask)
            row = result.fetchone()
            seen.append((number, (await row if hasattr(row, "__await__") else row)[0]))
        await written(event, tx)

    def act(event: Event[OrderPlaced], tx: Any) -> Any:
        if kind in ASYNC:
            return asynchronous(event, tx)
        number = event.data.order_id
        if number == BAD:
            statement(tx, query)
        seen.append((number, statement(tx, ask).fetchone()[0]))
        written(event, tx)
        return None

    await work(pg_store, kind, way, act)
    assert {tenant for number, tenant in seen if number != BAD} == {""}
    assert (BAD, "acme") in seen
    assert apart(pg_store) == []
    assert pg_store.query("select count(*), count(distinct number) from effect") == [(COUNT, COUNT)]


async def test_a_savepoint_is_a_savepoint_everywhere(pg_store: Store) -> None:
    """asyncpg's ``tx.transaction()``, with an error inside that is caught. (What follows has a name of its own then: a
    savepoint that asyncpg rolled back to stays open.)"""
    prepared(pg_store)
    pg_store.do("create table once (number integer primary key)")
    pg_store.do("insert into once values (1)")

    async def with_asyncpg(event: Event[OrderPlaced], tx: Any) -> None:
        try:
            async with tx.transaction():
                await tx.execute("insert into once values (1)")
        except asyncpg.UniqueViolationError:
            await written(event, tx)

    await work(pg_store, asyncpg.Connection, "batch", with_asyncpg)
    await work(pg_store, asyncpg.Connection, "alone", with_asyncpg)
    assert pg_store.query("select count(*) from effect") == [(COUNT * 2,)]
    assert len(inbox(pg_store)) == COUNT * 2
