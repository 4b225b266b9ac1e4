"""Executes the blocks of one page that are marked ``run=NAME``, in order: ``python -m tests.docs.snippets PAGE NAME``.

In a process of its own, since pages declare events of the same names. Python blocks share one module, called ``shop``;
they may await. SQL blocks run on a connection to the same database; rows are printed as ``a | b``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import os
import sqlite3
import sys
import types
from pathlib import Path
from typing import Any

from tests.docs.pages import Block, blocks

PLACE = "shop@localhost/shop"
"""What stands in the pages' PostgreSQL URLs; ``DATABASE_URL`` says where it really is."""


def chosen(page: Path, name: str) -> list[tuple[Block, str | None]]:
    """Blocks of this name, each with the output the page shows for it."""
    found: list[tuple[Block, str | None]] = []
    all_blocks = [*blocks(page), None]
    for block, after in itertools.pairwise(all_blocks):
        if block is not None and name in block.options.get("run", "").split(","):
            found.append((block, after.text if after is not None and "output" in after.words else None))
    return found


async def execute(page: Path, name: str) -> None:
    from tests.docs.reader import matches

    place = os.environ["DATABASE_URL"].partition("://")[2]
    module = types.ModuleType("shop")
    sys.modules["shop"] = module
    done = 0
    for block, expected in chosen(page, name):
        text = block.text.replace(PLACE, place)
        if block.language == "sql":
            printed = run_sql(text, name)
            if expected is not None:
                assert matches(printed, expected), f"{block.where} gave\n{printed}\nand the page says\n{expected}"
        else:
            code = compile(text, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            result = eval(code, module.__dict__)
            if inspect.isawaitable(result):
                await result
        done += 1
    print(f"{done} blocks", file=sys.stderr)


def run_sql(text: str, name: str) -> str:
    rows: list[tuple[Any, ...]] = []
    if name == "postgres":
        import psycopg

        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            while True:
                rows += cursor.fetchall() if cursor.description else []
                if not cursor.nextset():
                    break
    else:
        lite = sqlite3.connect("shop.db", isolation_level=None)
        statement = ""
        for line in text.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                rows += lite.execute(statement).fetchall()
                statement = ""
        assert not statement.strip(), statement
        lite.close()
    return "".join(" | ".join("" if value is None else str(value) for value in row) + "\n" for row in rows)


if __name__ == "__main__":
    asyncio.run(execute(Path(sys.argv[1]), sys.argv[2]))
