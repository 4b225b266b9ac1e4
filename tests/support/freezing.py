"""Processes that stand still, all of their threads."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.support.waiting import eventually_sync


def freeze(pids: Sequence[int]) -> None:
    """SIGSTOP, and wait until it has reached every thread: until then a server still answers what comes at once."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    eventually_sync(lambda: all(_stands_still(pid) for pid in pids), what=f"{list(pids)} stand still", every_s=0.001)


def _stands_still(pid: int) -> bool:
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            states.append(thread.read_text().rsplit(")", 1)[1].split()[0])
    return all(state in "TZX" for state in states)
