"""Where the test servers live and which ports they prefer. All of it can be overridden by environment variables.

RELEVO_SERVICES_DIR        state, data and logs               (default: .services of the repository)
RELEVO_SERVICES_OPT        downloaded server binaries         (default: .services/opt of the repository)
RELEVO_SERVICES_BASE_PORT  first port tried                   (default: 21000)
RELEVO_SERVICES_FSYNC      on = servers keep their promises over a power cut, as for benchmarks (default: off)
RELEVO_SERVICES_ENGINE     native | compose                   (default: native, compose where only that can work)
RELEVO_SERVICES_BESIDE     1 = binaries of further versions for `run`'s command, as for the tests (default: none)
"""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FILES = Path(__file__).resolve().parent / "files"
PORT_STEP = 10
EPHEMERAL_PORT_MIN = 32768  # from here on the kernel gives ports to any client that connects somewhere


def _path(variable: str, default: Path) -> Path:
    value = os.environ.get(variable)
    return (REPO / value).resolve() if value else default


def services_dir() -> Path:
    return _path("RELEVO_SERVICES_DIR", REPO / ".services")


def opt_dir() -> Path:
    return _path("RELEVO_SERVICES_OPT", REPO / ".services" / "opt")


def base_port() -> int:
    return int(os.environ.get("RELEVO_SERVICES_BASE_PORT", "21000"))


def fsync() -> bool:
    return os.environ.get("RELEVO_SERVICES_FSYNC", "off").lower() in ("on", "1", "true", "yes")


def beside() -> bool:
    return os.environ.get("RELEVO_SERVICES_BESIDE") == "1"


def is_root() -> bool:
    return os.geteuid() == 0
