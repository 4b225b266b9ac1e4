"""The how-to pages about tables and grants: every command line and every Python block of theirs is run, in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["install-the-tables.md", "grants.md"])
def test_the_page_works_as_written(page: str, pg_database: str, tmp_path: Path) -> None:
    """On a fresh database. Role names are made the test's own, since roles belong to the whole server."""
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed")
    suffix = pg_database.rpartition("_")[2]
    text = re.sub(r"\bshop_(app|relay)\b", rf"shop_\1_{suffix}", (PAGES / page).read_text())
    roles = sorted(set(re.findall(r"\bshop_(?:app|relay)_\w+", text)))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(tmp_path), "RELEVO_DATABASE_URL": pg_database}
    blocks = _BLOCK.findall(text)
    assert blocks
    try:
        for kind, body in blocks:
            if kind == "python":
                commands = [[sys.executable, "-c", body]]
            else:
                commands = [["bash", "-c", line.removeprefix("$ ")] for line in body.splitlines() if line[:2] == "$ "]
            for command in commands:
                done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, (command[-1], done.stderr)
    finally:
        with psycopg.connect(pg_database) as connection:
            for role in roles:
                if connection.execute("select from pg_roles where rolname = %s", (role,)).fetchone() is not None:
                    connection.execute(f"drop owned by {role}; drop role {role}".encode())
