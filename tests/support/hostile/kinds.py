"""Every kind of transaction a hostile handler can have, and how a deed runs in it."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg
import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

import tests.support.hostile.database_deeds  # noqa: F401 - declares them
from tests.support.consumers import insert
from tests.support.hostile.deeds import DEEDS, Deed, Hand
from tests.support.relays import Store


@dataclass(frozen=True)
class Kind:
    """``annotation``: of the handler's ``tx``; ``None``: it takes none."""

    dialect: Literal["postgresql", "sqlite"]
    annotation: Any
    is_async: bool

    def allows(self, deed: Deed) -> bool:
        return all(self._has(need) for need in deed.needs)

    def _has(self, need: str) -> bool:
        match need:
            case "tx":
                return self.annotation is not None
            case "async":
                return self.is_async
            case "postgres" | "sqlite":
                return self.dialect.startswith(need)
        return hasattr(self.annotation, need.removeprefix("."))

    def deeds(self) -> dict[str, Deed]:
        return {name: deed for name, deed in DEEDS.items() if self.allows(deed)}


KINDS = {
    "psycopg": Kind("postgresql", psycopg.Connection, False),
    "psycopg async": Kind("postgresql", psycopg.AsyncConnection, True),
    "asyncpg": Kind("postgresql", asyncpg.Connection, True),
    "Session": Kind("postgresql", Session, False),
    "AsyncSession": Kind("postgresql", AsyncSession, True),
    "Connection": Kind("postgresql", Connection, False),
    "AsyncConnection": Kind("postgresql", AsyncConnection, True),
    "none": Kind("postgresql", None, False),
    "none async": Kind("postgresql", None, True),
    "sqlite3": Kind("sqlite", sqlite3.Connection, False),
    "sqlite3 async": Kind("sqlite", sqlite3.Connection, True),
    "Session on SQLite": Kind("sqlite", Session, False),
    "AsyncSession on SQLite": Kind("sqlite", AsyncSession, True),
}


def handler_of(kind: Kind, store: Store, plan: Callable[[Any], Deed | None], many: bool) -> Any:
    """A handler that does what ``plan`` says of an event; without a deed it has its effect. Each runs in the order of
    the events it is given. Of many it returns the first result, so that no deed's is lost in a batch."""

    def hand_of(event: Any, tx: Any) -> Hand:
        number = event.data.order_id
        if kind.annotation is None:
            mine = f"insert into effect (number, what) values ({number}, 'alone')"
            return Hand(None, store.do, lambda: store.do(mine), kind.is_async)
        return Hand(tx, lambda query: execute(tx, query), lambda: insert(tx, number), kind.is_async)

    def sync(given: Any, tx: Any = None) -> Any:
        result = None
        for event in given if many else [given]:
            found = drive(plan(event), hand_of(event, tx))
            result = found if result is None else result
        return result

    async def asynchronous(given: Any, tx: Any = None) -> Any:
        result = None
        for event in given if many else [given]:
            found = await adrive(plan(event), hand_of(event, tx))
            result = found if result is None else result
        return result

    chosen: Any = asynchronous if kind.is_async else sync
    if kind.annotation is not None:
        chosen.__annotations__["tx"] = kind.annotation
        return chosen
    if kind.is_async:

        async def without(given: Any) -> Any:
            return await asynchronous(given)

        return without
    return lambda given: sync(given)


def execute(tx: Any, query: str) -> Any:
    return tx.execute(text(query)) if type(tx).__module__.startswith("sqlalchemy") else tx.execute(query)


def drive(deed: Deed | None, hand: Hand) -> Any:
    if deed is None or not inspect.isgeneratorfunction(deed.act):
        return hand.insert() and None if deed is None else deed.act(hand)
    steps, value = deed.act(hand), None
    while True:
        try:
            value = steps.send(value)
        except StopIteration as stop:
            return stop.value


async def adrive(deed: Deed | None, hand: Hand) -> Any:
    if deed is None or not inspect.isgeneratorfunction(deed.act):
        if deed is not None:
            return deed.act(hand)
        done = hand.insert()
        if inspect.isawaitable(done):
            await done
        return None
    steps = deed.act(hand)
    step, value = steps.send, None
    while True:
        try:
            given = step(value)
        except StopIteration as stop:
            return stop.value
        try:
            step, value = steps.send, (await given if inspect.isawaitable(given) else given)
        except BaseException as error:
            step, value = steps.throw, error  # type: ignore[assignment]
