"""Every benchmark can be started: they are run seldom, and by people."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "ArgumentParser(" in path.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_does(name: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    assert "usage: " in told.stdout


def test_the_suite_names_what_is_there() -> None:
    from benchmarks import suite

    assert {name for name, *_ in (*suite.SHORT, *suite.FULL)} == set(NAMES) - {"suite"}
