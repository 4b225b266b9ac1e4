"""The pytest plugin fails the test in which an await was forgotten, and only that one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import sqlite3
import pytest
from dataclasses import dataclass
from relevo import Outbox, event
from relevo.testing import expect_forgotten

@event("plugin.made")
@dataclass
class Made:
    a: int = 1

class Connection:
    "Stands for asyncpg's, which is told by its module."
    __module__ = "asyncpg.connection"
    __qualname__ = "Connection"
    def is_in_transaction(self):
        return True
    async def fetch(self, sql, *args):
        return []

Connection.__qualname__ = "Connection"
outbox = Outbox()

def test_fine():
    pass

async def test_awaited():
    await outbox.add(Connection(), Made())

async def test_forgotten():
    outbox.add(Connection(), Made())

async def test_forgotten_and_still_referenced(request):
    request.config.kept = outbox.add(Connection(), Made())

async def test_expected():
    with expect_forgotten() as sites:
        outbox.add(Connection(), Made())
    assert len(sites) == 1

async def test_own_failure():
    outbox.add(Connection(), Made())
    assert False, "mine"
"""


@pytest.mark.filterwarnings("ignore")
def test_in_a_suite_of_its_own(pytester: pytest.Pytester) -> None:
    """In a fresh pytest process, with the entry point as users have it."""
    path: Path = pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", "asyncio_mode=auto", str(path))
    result.assert_outcomes(passed=3, failed=3)
    line = next(n for n, text in enumerate(SUITE.splitlines(), 1) if "async def test_forgotten():" in text)
    output = result.stdout.str()
    assert "was not awaited, so its event was NOT written" in output
    assert f"{path.name}:{line}" in output  # makepyfile strips the empty first line, so this is the line below the def
    assert "AssertionError: mine" in output
    result.stdout.fnmatch_lines(["*FAILED*test_forgotten_and_still_referenced*"])
