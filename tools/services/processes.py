"""Processes known by pid *and* start time, so that a recycled pid is never taken for ours (Linux: /proc)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .shell import as_user

POLL_S = 0.02
STOP_TIMEOUT_S = 30.0

_children: dict[int, subprocess.Popen[bytes]] = {}  # kept so that they can be reaped


@dataclass(frozen=True)
class Process:
    pid: int
    start_time: str  # clock ticks since boot

    def alive(self) -> bool:
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            del _children[self.pid]
        return start_time(self.pid) == self.start_time

    def stop(self, stop_signal: signal.Signals) -> bool:
        """Ask it to end and wait; False when it had to be killed instead."""
        self._signal(stop_signal)
        if self._wait(STOP_TIMEOUT_S):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """SIGKILL the process and everything below it, as a power cut would.

        The leader goes first: PostgreSQL's would otherwise restart the children it sees dying.
        """
        if not self.alive():
            return
        below = descendants(self.pid)
        self._signal(signal.SIGKILL)
        for process in below:
            process._signal(signal.SIGKILL)
        for process in (self, *below):
            process._wait(STOP_TIMEOUT_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def _wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


def spawn(command: Sequence[str | Path], log: Path, env: Mapping[str, str], user: str | None) -> Process:
    """Start a server in a session of its own; it outlives this interpreter."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**os.environ, **env},
            start_new_session=True,
            **as_user(user),
        )
    _children[child.pid] = child
    return Process(child.pid, start_time(child.pid) or "gone")


def start_time(pid: int) -> str | None:
    """None when there is no such process, or only its zombie (init of a container may never reap it)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else fields[19]


def descendants(pid: int) -> list[Process]:
    parents: dict[int, list[Process]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = _stat(int(name))
        if fields is not None and fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(Process(int(name), fields[19]))
    found: list[Process] = []
    todo = [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += [child.pid for child in children]
    return found


def memory_mb(pid: int) -> int:
    """Resident memory of the process and all below it."""
    total_kb = 0
    for member in (pid, *(process.pid for process in descendants(pid))):
        try:
            lines = Path(f"/proc/{member}/status").read_text().splitlines()
        except OSError:
            continue
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total_kb // 1024


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: 0 = state, 1 = parent, 19 = start time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
