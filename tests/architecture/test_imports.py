"""The shape of the code: imports point downwards only, and the core loads nothing it does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_layers_hold() -> None:
    """import-linter's contracts in pyproject.toml."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_files_stay_small() -> None:
    """Three hundred lines are a smell: the few that pass it are named here, with the reason."""
    known = {
        "src/relevo/testing/broker_conformance.py": "one suite defines correct: it is read from top to bottom",
    }
    long = {
        str(file.relative_to(REPO)): lines
        for file in (REPO / "src").rglob("*.py")
        if (lines := len(file.read_text("utf-8").splitlines())) > 300
    }
    assert long.keys() <= known.keys(), f"split these, or say why not: {long}"
