"""What a hostile handler does to its transaction and connection."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.hostile.deeds import KEEP, Hand, Right, current, deed

ENDS = {
    "commit": "either",
    "rollback": "held",
    "end": "either",
    "abort": "held",
    "/* app */ commit": "either",
    "-- app\nrollback": "held",
    "commit and chain": "either",
    "rollback and chain": "held",
    "begin": "either",
    "prepare transaction 'mine'": "held",
    "set transaction read only": "either",
}
"""SQL that ends the transaction, or tries to."""


def ends_by(statement: str, right: Right) -> None:
    @deed(f"executes {statement!r}", right, "tx")
    def act(hand: Hand) -> Any:
        yield hand.insert()
        yield hand.sql(statement)


for statement, right in ENDS.items():
    ends_by(statement, right)  # type: ignore[arg-type]


def calls(method: str) -> None:
    @deed(f"calls tx.{method}()", "held", "tx", f".{method}")
    def act(hand: Hand) -> Any:
        yield hand.insert()
        yield getattr(hand.tx, method)()

    @deed(f"calls tx.{method}() and swallows what comes of it", "either", "tx", f".{method}")
    def swallow(hand: Hand) -> Any:
        yield hand.insert()
        try:
            yield getattr(hand.tx, method)()
        except Exception:
            return


for method in ("commit", "rollback", "close"):
    calls(method)


@deed("swallows a database error", "held", "tx", "postgres")
def swallow(hand: Hand) -> Any:
    yield hand.insert()
    try:
        yield hand.sql("select * from nowhere")
    except Exception:
        return


@deed("swallows a database error and goes on", "held", "tx", "postgres")
def swallow_and_go_on(hand: Hand) -> Any:
    try:
        yield hand.sql("select * from nowhere")
    except Exception:
        yield hand.insert()


@deed("swallows a database error on SQLite", "done", "tx", "sqlite")
def swallow_on_sqlite(hand: Hand) -> Any:
    yield hand.insert()
    try:
        yield hand.sql("select * from nowhere")
    except Exception:
        return


@deed("writes what the database refuses", "held", "tx")
def refused(hand: Hand) -> Any:
    yield hand.insert()
    yield hand.sql("insert into nowhere values (1)")


@deed("ends its own backend", "held", "tx", "postgres")
def terminate(hand: Hand) -> Any:
    yield hand.insert()
    yield hand.sql("select pg_terminate_backend(pg_backend_pid())")
    yield hand.sql("select 1")


@deed("ends its own backend and swallows that", "held", "tx", "postgres")
def terminate_and_swallow(hand: Hand) -> Any:
    yield hand.insert()
    try:
        yield hand.sql("select pg_terminate_backend(pg_backend_pid())")
    except Exception:
        return


@deed("idles beyond the server's time-out", "either", "tx", "postgres", "async")
def idle(hand: Hand) -> Any:
    yield hand.insert()
    yield hand.sql("set local idle_in_transaction_session_timeout = 50")
    yield asyncio.sleep(0.3)
    yield hand.sql("select 1")


@deed("idles beyond the server's time-out before its commit", "held", "tx", "postgres", "async")
def idle_before_commit(hand: Hand) -> Any:
    yield hand.insert()
    yield hand.sql("set local idle_in_transaction_session_timeout = 50")
    yield asyncio.sleep(0.3)


@deed("exceeds its statement time-out", "held", "tx", "postgres")
def statement_timeout(hand: Hand) -> Any:
    yield hand.insert()
    yield hand.sql("set local statement_timeout = 20")
    yield hand.sql("select pg_sleep(5)")
    yield hand.sql("select 1")


@deed("cancels its query by a time-out", "held", "tx", "postgres", "async")
def cancelled_query(hand: Hand) -> Any:
    yield hand.insert()

    async def query() -> None:
        async with asyncio.timeout(0.02):
            await hand.sql("select pg_sleep(5)")

    yield query()


@deed("sets a search path of its own", "either", "tx", "postgres")
def search_path(hand: Hand) -> Any:
    yield hand.insert()
    yield hand.sql("set local search_path = pg_catalog")


@deed("has two statements at once", "either", "tx", "postgres", "async")
def two_at_once(hand: Hand) -> Any:
    yield asyncio.gather(hand.insert(), hand.sql("select 1"))


@deed("leaves a statement under way", "either", "tx", "postgres", "async")
def under_way(hand: Hand) -> Any:
    yield hand.insert()

    async def later() -> None:
        await hand.sql("select pg_sleep(0.05)")

    KEEP.add(asyncio.get_running_loop().create_task(later()))
    yield asyncio.sleep(0)


@deed("cancels itself in a query", "held", "tx", "postgres", "async")
def cancel_in_query(hand: Hand) -> Any:
    yield hand.insert()
    asyncio.get_running_loop().call_later(0.02, current().cancel)
    yield hand.sql("select pg_sleep(5)")
    yield hand.sql("select 1")


@deed("breaks a deferred constraint", "held", "tx", "postgres")
def deferred(hand: Hand) -> Any:
    yield hand.insert()
    yield hand.sql("insert into deferred values (1), (1)")
