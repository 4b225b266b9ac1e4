"""Processes that stand still, all of their threads."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.waiting import eventually_sync


def freeze(pids: Sequence[int]) -> None:
    """SIGSTOP, and wait until it has reached every thread: until then a server still answers what comes at once."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    eventually_sync(lambda: all(_stands_still(pid) for pid in pids), what=f"{list(pids)} stand still", every_s=0.001)


def state(pid: int) -> str:
    """``T`` when its main thread is stopped."""
    with contextlib.suppress(OSError):
        return _state_in(Path(f"/proc/{pid}/stat"))
    return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()[:1]


def _state_in(stat: Path) -> str:
    return stat.read_text().rsplit(")", 1)[1].split()[0]


def _stands_still(pid: int) -> bool:
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            states.append(_state_in(thread))
    return all(state in "TZX" for state in states)
