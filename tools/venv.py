"""A virtual environment with Relevo installed editable. Usage: python -m tools.venv FOLDER [--extras dev]

Does nothing when the folder already fits pyproject.toml and the interpreter (--python). Uses uv when it works here,
else venv and pip.
Standard library only: it runs before any environment exists.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.services.errors import ServiceError
from tools.services.shell import file_lock, run, say

REPO = Path(__file__).resolve().parents[1]
ADVICE = "Check that the package index can be reached, and that Python has its venv module (Debian: python3-venv)."


def ensure(folder: Path, extras: str = "", python: str = sys.executable) -> Path:
    """Build or update the environment if needed; returns its interpreter. Raises ServiceError."""
    interpreter = folder / "bin" / "python"
    stamp = folder / ".relevo-stamp"
    with file_lock(REPO / ".services" / f".{folder.name.lstrip('.')}.lock"):
        version = _version(python)
        wanted = f"{version} {_fingerprint(extras)}"
        fits = interpreter.exists() and _version(str(interpreter)) == version
        if fits and stamp.exists() and stamp.read_text() == wanted:
            return interpreter
        if folder.exists() and not fits:
            shutil.rmtree(folder)  # otherwise update in place: somebody may be using it
        stamp.unlink(missing_ok=True)
        say(f"installing Relevo into {folder.name} (Python {version})")
        target = f"{REPO}[{extras}]" if extras else str(REPO)
        failing = f"building {folder.name}"
        env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        env.setdefault("UV_SYSTEM_CERTS", "1")  # as pip does, where the system knows an authority that uv does not
        try:
            if not _uv_works():
                raise ServiceError("there is no uv")
            if not interpreter.exists():
                run("uv", "venv", "--quiet", "--python", python, folder, failing=failing, advice=ADVICE, env=env)
            _install(("uv", "pip", "install", "--quiet", "--python", interpreter), target, folder, env)
        except ServiceError:
            if not (folder / "bin" / "pip").exists():
                shutil.rmtree(folder, ignore_errors=True)
                run(python, "-m", "venv", folder, failing=failing, advice=ADVICE, env=env)
            pip = (interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            _install(pip, target, folder, env)
        stamp.write_text(wanted)
    return interpreter


def _install(command: tuple[str | Path, ...], target: str, folder: Path, env: dict[str, str]) -> None:
    run(*command, "--editable", target, failing=f"installing into {folder.name}", advice=ADVICE, env=env)


def _fingerprint(extras: str) -> str:
    """Of what an installation depends on; settings of linters in the same file do not count."""
    import tomllib

    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    parts = [extras, project["project"], project["build-system"], project.get("tool", {}).get("hatch")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _version(python: str) -> str:
    code = "import platform; print(platform.python_version())"
    version = run(python, "-c", code, failing=f"running {python}", advice="Choose another: make PYTHON=python3.12")
    return version.strip()


def _uv_works() -> bool:
    """A version manager may leave a `uv` on PATH that only complains."""
    try:
        return subprocess.run(["uv", "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(" Usage")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", default="")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    try:
        ensure((REPO / options.folder).absolute(), options.extras, options.python)
    except ServiceError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - this file may be run by the system's Python
        sys.exit("Relevo needs Python 3.11 or later. Choose one: make PYTHON=python3.12")
    sys.exit(main())
