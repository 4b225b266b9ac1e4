"""Running commands, talking to the user, and locking between processes."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import ServiceError

OUTPUT_TAIL_CHARS = 1500


def say(message: str) -> None:
    """Talk goes to stderr: stdout carries only NAME=value lines."""
    print(message, file=sys.stderr, flush=True)


def run(
    *command: str | Path,
    failing: str,
    advice: str,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    stdin: str | None = None,
) -> str:
    """Run to the end and return stdout + stderr. Raises ServiceError "<failing>: ... <advice>"."""
    arguments = [str(part) for part in command]
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=stdin,
            text=True,
            env=env,
            cwd=None if user is None else "/",
            **as_user(user),
        )
    except OSError as error:
        raise ServiceError(f"{failing}: {arguments[0]}: {error.strerror}. {advice}") from error
    if done.returncode:
        tail = done.stdout[-OUTPUT_TAIL_CHARS:].strip()
        raise ServiceError(f"{failing}: {arguments[0]} exited with {done.returncode}:\n{tail}\n{advice}")
    return done.stdout


def as_user(user: str | None) -> dict[str, Any]:
    """Arguments for subprocess that drop root for this user."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


@contextlib.contextmanager
def file_lock(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold an advisory lock on the file; yields False when `wait` is off and somebody else holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(handle, mode if wait else mode | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
