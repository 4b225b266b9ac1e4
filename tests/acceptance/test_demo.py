"""``relevo demo`` as a user runs it: the relay is really killed, the duplicate comes, the ledger holds."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.cli import environment

REPO = Path(__file__).resolve().parents[2]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relevo", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        env=environment(None),
        check=False,
    )


def test_the_demo_on_the_embedded_default(tmp_path: Path) -> None:
    done = demo("--directory", str(tmp_path), "--orders", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the relay was killed with SIGKILL" in done.stdout
    duplicates = re.search(r"(\d+) messages? came twice on the wire", " ".join(done.stdout.split()))
    assert duplicates is not None and int(duplicates[1]) > 0
    assert done.stdout.count(" ok │") == 6 and "NOT OK" not in done.stdout
    assert "postgresql" in done.stdout  # the next steps
    assert "probe relay.confirmed: SIGKILL" in (tmp_path / "relay.log").read_text()
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        ((orders,),) = connection.execute("select count(*) from shop_order").fetchall()
        ((charges, distinct),) = connection.execute(
            "select count(*), count(distinct order_id || '/' || version) from shop_charge"
        ).fetchall()
    assert orders == 200
    assert charges == distinct >= 200


def test_the_demo_on_postgres_and_kafka(pg_database: str, kafka_url: str, tmp_path: Path) -> None:
    """The same shop, moved by two URLs."""
    done = demo("--directory", str(tmp_path), "--orders", "100", "--database", pg_database, "--broker", kafka_url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok │") == 6 and "NOT OK" not in done.stdout


def test_the_wheel_has_everything_the_demo_needs(tmp_path: Path) -> None:
    """SQL, migrations and the example shop travel in the wheel; an installed package is not a checkout."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(REPO)]
        if _has_pip()
        else ["uv", "build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(REPO)],
        check=True,
        timeout=170,
        env={"UV_SYSTEM_CERTS": "1", **os.environ},
    )
    (wheel,) = tmp_path.glob("relevo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {
        "relevo/py.typed",
        "relevo/cli/demo/_shop/shop.py",
        "relevo/cli/demo/_shop/database.py",
        "relevo/storage/sqlite/sql/mark.sql",
        "relevo/storage/postgres/sql/mark.sql",
        "relevo/storage/sqlite/migrations/0001_tables.sql",
        "relevo/storage/postgres/migrations/0001_tables.sql",
    }
    assert wanted <= names
    every_sql = {
        "relevo/" + str(file.relative_to(REPO / "src" / "relevo")) for file in (REPO / "src" / "relevo").rglob("*.sql")
    }
    assert every_sql <= names
    assert not any(name.startswith(("tests/", "benchmarks/", "tools/")) for name in names)


def _has_pip() -> bool:
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0
