"""What a type checker says about user code: mypy with the project's settings, over files written here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

HEAD = """
import sqlite3
from dataclasses import dataclass
from uuid import UUID
import aiosqlite
import asyncpg
import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from relevo import Message, Outbox, command, event
from relevo.testing import captured

@event("shop.order.placed", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: UUID
    total_cents: int = 0

outbox = Outbox()
"""

FINE = """
def sync(
    a: Session, b: scoped_session[Session], c: Connection, d: psycopg.Connection, e: sqlite3.Connection,
    data: OrderPlaced, message: Message,
) -> list[UUID]:
    ids: list[UUID] = [
        outbox.add(a, data), outbox.add(b, data), outbox.add(c, data), outbox.add(d, data),
        outbox.add(e, data, key=None, headers={"a": "b"}, aggregate_version=3), outbox.add_message(a, message),
    ]
    found: bool = outbox.find(a, ids[0])
    outbox.add(a, data)
    return ids + outbox.add_many(a, [data])

async def asynchronous(
    a: AsyncSession, b: async_scoped_session[AsyncSession], c: AsyncConnection, d: psycopg.AsyncConnection,
    e: asyncpg.Connection, f: aiosqlite.Connection, pool: asyncpg.Pool, data: OrderPlaced, message: Message,
) -> list[UUID]:
    ids: list[UUID] = [
        await outbox.add(a, data), await outbox.add(b, data), await outbox.add(c, data), await outbox.add(d, data),
        await outbox.add(e, data), await outbox.add(f, data), await outbox.add_message(a, message),
    ]
    found: bool = await outbox.find(a, ids[0])
    async with pool.acquire() as g:
        await outbox.add(g, data)
    return ids + await outbox.add_many(a, [data])

def declared(order_id: UUID) -> OrderPlaced:
    with captured() as added:
        key: bytes | None = added[0].message.key
    return OrderPlaced(order_id)
"""

WRONG = {
    "forgotten await": (
        "async def f(s: AsyncSession, data: OrderPlaced) -> None:\n    outbox.add(s, data)\n",
        "unused-coroutine",
    ),
    "forgotten await, psycopg": (
        "async def f(s: psycopg.AsyncConnection, data: OrderPlaced) -> None:\n    outbox.add(s, data)\n",
        "unused-coroutine",
    ),
    "forgotten await, many": (
        "async def f(s: AsyncConnection, data: OrderPlaced) -> None:\n    outbox.add_many(s, [data])\n",
        "unused-coroutine",
    ),
    "await of a sync handle": (
        "async def f(s: Session, data: OrderPlaced) -> None:\n    await outbox.add(s, data)\n",
        'Incompatible types in "await"',
    ),
    "no handle": ("def f(data: OrderPlaced) -> None:\n    outbox.add('postgresql://', data)\n", "call-overload"),
    "the declaration keeps the class": ("x = OrderPlaced(1)\n", "arg-type"),
    "a misspelt option": (
        "def f(s: Session, data: OrderPlaced) -> None:\n    outbox.add(s, data, topick='a')\n",
        "call-overload",
    ),
}


def mypy(folder: Path, code: str) -> tuple[int, str]:
    """Exit code and output for user code, as a project without a configuration of its own would see it."""
    file = folder / "user_code.py"
    file.write_text(HEAD + code)
    config = folder / "mypy.ini"
    config.write_text(
        f"[mypy]\nmypy_path = {SOURCE}\nstrict = True\ndisallow_any_generics = False\n"
        "[mypy-asyncpg.*]\nignore_missing_imports = True\n"  # it has no types of its own: its handles are Any
    )
    cache = folder.parent / "mypy_cache"  # shared by the tests of this file: the libraries are read once
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", cache, "--follow-imports=silent", file],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
    )
    return done.returncode, done.stdout + done.stderr


def test_right_code_is_clean(tmp_path: Path) -> None:
    """Every handle kind is known as sync or async: UUID here, an awaitable of a UUID there."""
    status, output = mypy(tmp_path, FINE)
    assert status == 0, output


def test_wrong_code_is_flagged(tmp_path: Path) -> None:
    """HARD 23: a forgotten await is a type error; so is an await too many, a wrong handle, a misspelt option."""
    for name, (code, said) in WRONG.items():
        status, output = mypy(tmp_path, code)
        assert status == 1, name
        assert said in output, (name, output)
        assert {line.split(":")[1] for line in output.splitlines() if ": error:" in line} <= _lines(code), (
            name,
            output,
        )


def _lines(code: str) -> set[str]:
    """The numbers of the lines that ``code`` has in the checked file."""
    first = HEAD.count("\n") + 1
    return {str(first + offset) for offset in range(code.count("\n"))}


@pytest.mark.parametrize("module", ["outbox", "storage/handles"])
def test_no_blanket_ignores(module: str) -> None:
    """No `type: ignore` without its code in what is checked here."""
    for file in (SOURCE / "relevo" / module).rglob("*.py"):
        assert "type: ignore\n" not in file.read_text(), file
