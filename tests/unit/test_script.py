"""Scripts: one generator, two ways to drive it."""

from __future__ import annotations

import asyncio

import pytest

from relevo.script import Rows, Script, Statement, arun, run


def count_down(closed: list[str]) -> Script[list[int]]:
    found: list[int] = []
    try:
        for number in range(3):
            rows = yield Statement("t.read", {"number": number})
            found.append(rows[0][0])
        return found
    finally:
        closed.append("closed")


def answer(statement: Statement) -> Rows:
    return [(statement.params["number"] * 10,)]


async def test_sync_and_async_agree() -> None:
    """Statements in order, rows sent back, the return value returned."""
    closed: list[str] = []

    async def aanswer(statement: Statement) -> Rows:
        return answer(statement)

    assert run(count_down(closed), answer) == await arun(count_down(closed), aanswer) == [0, 10, 20]
    assert closed == ["closed", "closed"]


async def test_an_error_closes_the_script_and_comes_out() -> None:
    """What a statement raises reaches the caller as it is."""
    closed: list[str] = []

    def fail(statement: Statement) -> Rows:
        raise LookupError(statement.name)

    async def afail(statement: Statement) -> Rows:
        raise LookupError(statement.name)

    with pytest.raises(LookupError, match=r"t\.read"):
        run(count_down(closed), fail)
    with pytest.raises(LookupError, match=r"t\.read"):
        await arun(count_down(closed), afail)
    assert closed == ["closed", "closed"]


async def test_cancellation_reaches_the_statement() -> None:
    """A cancelled task is cancelled in the statement it waits for, and the script is closed."""
    closed: list[str] = []
    waiting = asyncio.Event()

    async def hang(statement: Statement) -> Rows:
        waiting.set()
        await asyncio.Event().wait()
        return []

    task = asyncio.create_task(arun(count_down(closed), hang))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["closed"]
