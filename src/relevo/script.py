"""Scripts: store operations as generators that yield statements and receive rows.

A script knows what to ask and in which order; it never waits. ``run`` drives one on a blocking executor, ``arun`` on an
awaitable one, so sync and async share every line of logic (the shape psycopg 3 uses inside)::

    def lock_lanes(lanes: list[int]) -> Script[set[int]]:
        rows = yield Statement("lanes.lock", {"lanes": lanes})
        return {row[0] for row in rows}

A script must not catch exceptions of its statements and go on: on PostgreSQL the transaction is aborted by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = Sequence[Row]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement and its parameters.

    ``name`` is the key of an SQL text of the dialect (``storage/<dialect>/sql/*.sql``). A parameter that is a list or
    tuple is an array (PostgreSQL) or JSON text (SQLite); the executor converts it.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


class Ids(list[str]):
    """UUIDs as text, a parameter that is an array: ``literal`` is one without asking how to quote each."""

    @property
    def literal(self) -> str:
        return "{" + ",".join(self) + "}"


Script: TypeAlias = Generator[Statement, Rows, T]
Execute: TypeAlias = Callable[[Statement], Rows]
AsyncExecute: TypeAlias = Callable[[Statement], Awaitable[Rows]]


def run(script: Script[T], execute: Execute) -> T:
    """Drive ``script`` with a blocking ``execute``; returns what the script returns, raises what a statement raises."""
    try:
        statement = next(script)
        while True:
            statement = script.send(execute(statement))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        script.close()


def after(first: Script[None], then: Script[T]) -> Script[T]:
    """``then`` behind ``first``, which locks or proves what it relies on: one script, so one transaction."""
    yield from first
    return (yield from then)


async def arun(script: Script[T], execute: AsyncExecute) -> T:
    """Drive ``script`` with an awaitable ``execute``. Cancellation reaches the statement that is being awaited."""
    try:
        statement = next(script)
        while True:
            statement = script.send(await execute(statement))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        script.close()
