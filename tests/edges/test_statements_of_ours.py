"""Relevo's own statements mean the same on every connection of the application's: whatever codecs, adapters, factories
and cursor classes it set, and whatever its role or database sets."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import aiosqlite
import asyncpg
import psycopg
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from relevo import Outbox
from relevo.clients.texts import text_session
from relevo.errors import ConfigError, MisuseError, RefusedError
from tests.support.events import OrderPlaced
from tests.support.relays import Store, sqlite_store

outbox = Outbox()


class Base(DeclarativeBase): ...


class Row(Base):
    __tablename__ = "listened"
    number: Mapped[int] = mapped_column(primary_key=True)


HEADERS = {"tenant": "zürich", "name": "日本"}
NOTE = "back\\slash 'quote' NULL {\"a\"} 日本"
BY_COPY = 1000


def events(count: int) -> list[OrderPlaced]:
    return [OrderPlaced(number, NOTE) for number in range(count)]


def append(handle: Any, count: int) -> Any:
    """One event with headers, or several without."""
    if count == 1:
        return outbox.add(handle, OrderPlaced(0, NOTE), headers=HEADERS)
    return outbox.add_many(handle, events(count))


def check(store: Store, count: int) -> None:
    """Every row as it was given, byte for byte."""
    rows = store.query(
        "select key, payload, headers, aggregate_type, aggregate_version, event_id from relevo_outbox order by seq"
    )
    assert len(rows) == count
    for key, payload, headers, aggregate_type, aggregate_version, event_id in rows:
        data = json.loads(bytes(payload))
        assert bytes(key) == str(data["order_id"]).encode()
        assert data["note"] == NOTE
        given = json.loads(headers) if isinstance(headers, str) else headers
        assert (given or None) == (HEADERS if count == 1 else None)
        assert (aggregate_type, aggregate_version) == (None, None)
        UUID(str(event_id))


class Shouting(Dumper):
    def dump(self, obj: Any) -> bytes:
        return b"SHOUTED"


class Nothing(Loader):
    def load(self, data: Any) -> Any:
        raise AssertionError("an application's loader was asked")


def hostile(connection: Any) -> None:
    """What an application may do to its psycopg connection."""
    for kind in (str, bytes, int, UUID, list, dict):
        connection.adapters.register_dumper(kind, Shouting)
    for name in ("text", "uuid", "jsonb", "json", "int4", "int8", "bytea", "timestamptz"):
        connection.adapters.register_loader(name, Nothing)
    set_json_loads(lambda _: 1 / 0, connection)
    connection.row_factory = dict_row


async def hostile_codecs(connection: Any, count: int) -> None:
    """What an application may do to its asyncpg connection. asyncpg asks the elements' codecs for arrays in any case,
    so with several events those of bytes, numbers and text are left as they are."""
    plain = ("text", "bytea", "int4", "int8") if count == 1 else ()
    for name in ("jsonb", "json", "uuid", "timestamptz", *plain):
        await connection.set_type_codec(
            name, encoder=lambda _: 1 / 0, decoder=lambda _: 1 / 0, schema="pg_catalog", format="text"
        )


@contextmanager
def app_psycopg(store: Store, **options: Any) -> Iterator[Any]:
    with psycopg.connect(store.url, **options) as connection:
        hostile(connection)
        yield connection


@contextmanager
def app_sqlalchemy(store: Store, **_: Any) -> Iterator[Any]:
    engine = create_engine(
        store.url.replace("postgresql:", "postgresql+psycopg:"),
        json_serializer=lambda _: 1 / 0,
        json_deserializer=lambda _: 1 / 0,
    )
    with Session(engine) as session:
        yield session
        session.commit()
    engine.dispose()


@pytest.mark.parametrize("count", [1, 3, BY_COPY])
@pytest.mark.parametrize("cursors", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor])
def test_an_applications_psycopg(pg_store: Store, cursors: Any, count: int) -> None:
    with app_psycopg(pg_store, cursor_factory=cursors) as connection:
        append(connection, count)
    check(pg_store, count)


@pytest.mark.parametrize("count", [1, 3])
def test_an_applications_sqlalchemy(pg_store: Store, count: int) -> None:
    with app_sqlalchemy(pg_store) as session:
        append(session, count)
    check(pg_store, count)


@pytest.mark.parametrize("count", [1, 3])
async def test_an_applications_asyncpg(pg_store: Store, count: int) -> None:
    connection = await asyncpg.connect(pg_store.url)
    await hostile_codecs(connection, count)
    async with connection.transaction():
        await append(connection, count)
    await connection.close()
    check(pg_store, count)


@pytest.mark.parametrize("count", [1, 3])
async def test_codecs_below_sqlalchemy(pg_store: Store, count: int) -> None:
    """Those of jsonb, json, uuid and timestamptz, as an application sets them when its pool connects."""
    engine = create_async_engine(pg_store.url.replace("postgresql:", "postgresql+asyncpg:"))

    @event.listens_for(engine.sync_engine, "connect")
    def connected(dbapi: Any, _: Any) -> None:
        for name in ("jsonb", "json", "uuid", "timestamptz"):
            dbapi.run_async(
                lambda driver, name=name: driver.set_type_codec(
                    name, encoder=lambda _: 1 / 0, decoder=lambda _: 1 / 0, schema="pg_catalog", format="text"
                )
            )

    async with engine.begin() as connection:
        await append(connection, count)
    await engine.dispose()
    check(pg_store, count)


def _texts(value: bytes) -> Any:
    raise AssertionError("an application's text factory was asked")


@pytest.mark.parametrize("count", [1, 3])
def test_an_applications_sqlite3(tmp_path: Path, count: int) -> None:
    store = sqlite_store(tmp_path / "app.db")
    connection = sqlite3.connect(tmp_path / "app.db", detect_types=sqlite3.PARSE_DECLTYPES)
    connection.row_factory, connection.text_factory = sqlite3.Row, _texts
    append(connection, count)
    connection.commit()
    assert connection.text_factory is _texts
    connection.close()
    check(store, count)


async def test_an_applications_aiosqlite(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "app.db")
    async with aiosqlite.connect(tmp_path / "app.db") as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, _texts
        await append(connection, 3)
        await connection.commit()
    check(store, 3)


SETTINGS = [
    *("standard_conforming_strings = off", "array_nulls = off", "bytea_output = escape", "datestyle = 'SQL, DMY'"),
    *("intervalstyle = sql_standard", "extra_float_digits = -15", "timezone = 'Asia/Kathmandu'"),
    *("default_transaction_isolation = serializable", "transform_null_equals = on", "client_encoding = latin1"),
    *("backslash_quote = off", "xmlbinary = hex", "quote_all_identifiers = on", "default_transaction_deferrable = on"),
]
WRITERS: dict[str, Callable[[Store], Any]] = {
    "psycopg": lambda store: psycopg.connect(store.url),
    "psycopg client-side": lambda store: psycopg.connect(store.url, cursor_factory=psycopg.ClientCursor),
    "sqlalchemy": lambda store: Session(create_engine(store.url.replace("postgresql:", "postgresql+psycopg:"))),
}


@pytest.mark.parametrize("count", [1, 3, BY_COPY])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_database_sets(pg_store: Store, setting: str, writer: str, count: int) -> None:
    """Bytes, nulls and times as they were given, whatever the sessions of this database begin with."""
    if count == BY_COPY and writer != "psycopg":
        pytest.skip("only a psycopg connection is copied to")
    pg_store.do(f"alter database {pg_store.url.rpartition('/')[2]} set {setting}")
    with WRITERS[writer](pg_store) as connection:
        append(connection, count)
        connection.commit()
    pg_store.do(f"alter database {pg_store.url.rpartition('/')[2]} reset all")
    check(pg_store, count)


@pytest.mark.parametrize("writer", ["psycopg", "psycopg client-side"])
def test_text_that_a_client_encoding_cannot_carry_is_refused(pg_store: Store, writer: str) -> None:
    """In words, and before anything is sent: the transaction goes on."""
    with WRITERS[writer](pg_store) as connection:
        connection.execute("set client_encoding = latin1")
        with pytest.raises(RefusedError, match="client_encoding"):
            outbox.add(connection, OrderPlaced(1), aggregate_id="日本", aggregate_type="order")
        outbox.add(connection, OrderPlaced(2), aggregate_id="zürich", aggregate_type="order")
    assert pg_store.query("select aggregate_id from relevo_outbox") == [("zürich",)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_is_refused(pg_store: Store, encoding: str) -> None:
    name = f"{pg_store.url.rpartition('/')[2]}_{encoding.lower()}"
    with psycopg.connect(pg_store.url, autocommit=True) as connection:
        connection.execute(
            f"create database {name} encoding '{encoding}' template template0 lc_collate 'C' lc_ctype 'C'"
        )
    try:
        settings = type(pg_store.settings)(url=pg_store.url.rpartition("/")[0] + "/" + name)
        with pytest.raises(ConfigError, match=f"{encoding}.*UTF8"), text_session(settings):
            pass
    finally:
        with psycopg.connect(pg_store.url, autocommit=True) as connection:
            connection.execute(f"drop database {name} with (force)")


LISTENERS = ["before_flush", "after_flush", "after_flush_postexec", "before_commit"]


@pytest.mark.parametrize("rolled_back", [False, True])
@pytest.mark.parametrize("listener", LISTENERS)
def test_an_append_in_a_listener(pg_store: Store, listener: str, rolled_back: bool) -> None:
    """The event is in the transaction of the session that calls the listener, with its data."""
    engine = create_engine(pg_store.url.replace("postgresql:", "postgresql+psycopg:"))
    Base.metadata.create_all(engine)
    added: list[str] = []

    def append(session: Session, *_: Any) -> None:
        if not added:
            added.append(listener)
            outbox.add(session, OrderPlaced(1))

    with Session(engine) as session:
        event.listen(session, listener, append)
        session.add(Row(number=1))
        session.flush()
        if listener == "before_commit" or not rolled_back:
            session.commit()
        else:
            session.rollback()
    engine.dispose()
    assert added == [listener]
    kept = 1 if listener == "before_commit" or not rolled_back else 0
    assert len(pg_store.query("select 1 from relevo_outbox")) == kept
    assert len(pg_store.query("select 1 from listened")) == kept


def test_a_listener_that_must_not_use_its_session_is_told_so(pg_store: Store) -> None:
    engine = create_engine(pg_store.url.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session:
        event.listen(session, "after_begin", lambda session, *_: outbox.add(session, OrderPlaced(1)))
        with pytest.raises(MisuseError, match="pass the connection"):
            session.connection()
    with Session(engine) as session:
        event.listen(session, "after_begin", lambda _, __, connection: outbox.add(connection, OrderPlaced(1)))
        session.connection()
        session.commit()
    engine.dispose()
    assert len(pg_store.query("select 1 from relevo_outbox")) == 1
