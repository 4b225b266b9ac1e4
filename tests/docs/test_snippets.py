"""The how-to pages' code is run: on PostgreSQL, on SQLite, each page and database in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relevo.ops.migrate import migrate
from relevo.settings import DatabaseSettings, Settings
from tests.docs.pages import PAGES, REPO, blocks, name_of

RUNS = sorted(
    {
        (page, name)
        for page in PAGES
        for block in blocks(page)
        for name in block.options.get("run", "").split(",")
        if name
    }
)


@pytest.mark.parametrize(("page", "name"), RUNS, ids=[f"{name_of(page)}-{name}" for page, name in RUNS])
def test_the_page_runs(page: Path, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Whatever the page claims in an ``assert``, or shows as a result, holds."""
    assert name in ("postgres", "sqlite"), f"{page}: run={name} is no database"
    url = request.getfixturevalue("pg_database") if name == "postgres" else f"sqlite:///{tmp_path / 'shop.db'}"
    migrate(Settings(database=DatabaseSettings(url=url)))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RELEVO_")}
    done = subprocess.run(
        [sys.executable, "-W", "error::relevo.errors.ForgottenAwaitWarning", "-m", "tests.docs.snippets", page, name],
        cwd=tmp_path,
        env=kept | {"PYTHONPATH": str(REPO), "DATABASE_URL": url, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_database_is_covered() -> None:
    """If nothing were marked, nothing would be run."""
    assert {name for _, name in RUNS} == {"postgres", "sqlite"}
    assert len(RUNS) >= 6
