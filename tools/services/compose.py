"""The other engine: containers from compose.yaml, where this user can neither apt-install nor needs to."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping

from . import packages
from .errors import ServiceError
from .settings import REPO, fsync
from .shell import run as run_command

_COMMAND = ("docker", "compose", "--file", str(REPO / "compose.yaml"))


@functools.cache
def is_wanted() -> bool:
    """Native servers start faster and can be killed by pid: containers only where apt is not ours to use."""
    engine = os.environ.get("RELEVO_SERVICES_ENGINE")
    if engine is not None and engine not in ("native", "compose"):
        raise ServiceError(f"RELEVO_SERVICES_ENGINE={engine} is unknown. Set it to native or compose.")
    if engine is not None:
        return engine == "compose"
    return not packages.can_apt() and _engine_answers()


def run(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    return run_command(
        *_COMMAND,
        *arguments,
        failing=f"docker compose {arguments[0]}",
        advice="Check `docker info`, or set RELEVO_SERVICES_ENGINE=native.",
        env={**os.environ, "RELEVO_POSTGRES_SHARED_BUFFERS": "256MB" if fsync() else "64MB", **(env or {})},
    )


def is_running(service: str) -> bool:
    return service in run("ps", "--status", "running", "--services").split()


def is_healthy(service: str) -> bool:
    return "(healthy)" in run("ps", service, "--format", "{{.Status}}")


def _engine_answers() -> bool:
    """The daemon is there, and so is the compose plugin."""
    try:
        return all(
            subprocess.run(["docker", *question], capture_output=True, timeout=10).returncode == 0
            for question in (["info"], ["compose", "version"])
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
