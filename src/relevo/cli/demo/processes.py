"""The demo's processes: the very commands a user would run, one relay and one consumer process, killed for real."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from relevo.cli.demo import shop

STOP_TIMEOUT_S = 15.0


@dataclass
class Process:
    """One ``relevo …`` in a process of its own; its output goes to a file in the demo's folder."""

    name: str
    arguments: list[str]
    config: Path
    probe: str | None = None
    started: int = 0
    _running: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.config.parent / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        return self._running.pid if self._running is not None and self._running.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """``None`` while it runs or before it was started; negative for the signal that ended it."""
        return self._running.poll() if self._running is not None else None

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
        if self.probe is not None and self.started == 0:
            environment["RELEVO_PROBE"] = self.probe
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                [sys.executable, "-m", "relevo", "--config", str(self.config), *self.arguments],
                cwd=shop.folder(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started += 1

    def was_killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL

    def failed(self) -> bool:
        return self.exit_code is not None and not self.was_killed()

    def tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-15:])
        return ""

    def stop(self) -> None:
        """SIGTERM, a bounded wait, then SIGKILL. Idempotent."""
        running = self._running
        if running is None or running.poll() is not None:
            return
        running.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        try:
            running.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
