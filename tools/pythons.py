"""Run the unit tests on the other supported Pythons of this machine. Usage: python -m tools.pythons

Each one found (PATH, or the folder of pyenv) gets an environment .venv-3.x; one that is missing is told and skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.services.errors import ServiceError
from tools.venv import REPO, ensure

SUPPORTED = ("3.11", "3.12", "3.13")
TESTS = "tests/unit"


def find(version: str) -> str | None:
    return next((python for python in _candidates(version) if _is(version, python)), None)


def run_tests(version: str) -> tuple[bool, str]:
    """Whether it is fine, and the text to print."""
    python = find(version)
    if python is None:
        return True, f"python {version}: not found, skipped"
    try:
        interpreter = ensure(REPO / f".venv-{version}", "dev", python)
    except ServiceError as error:
        return False, f"python {version}: {error}"
    command: list[str | Path] = [
        interpreter,
        "-m",
        "pytest",
        TESTS,
        "-q",
        "-rfE",
        "--color=no",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.strip().splitlines() or ["no output"]
    counts = re.sub(r"^=+ | in [\d.]+s.*$", "", lines[-1])
    if done.returncode == 0:
        return True, f"python {version}: {counts}"
    return False, "\n".join([*lines, f"python {version}: FAILED, {counts}"])


def main() -> int:
    current = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = [version for version in SUPPORTED if version != current]
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(run_tests, others))
    for _, text in results:
        print(text, flush=True)
    return 0 if all(fine for fine, _ in results) else 1


def _candidates(version: str) -> Iterator[str]:
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from (str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True))


def _is(version: str, python: str) -> bool:
    """It runs, and is what it says: a version manager's shim may refuse."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return False
    return done.stdout.strip() == version


if __name__ == "__main__":
    sys.exit(main())
