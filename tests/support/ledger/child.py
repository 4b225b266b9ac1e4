"""One process of a ledger run."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]


@dataclass
class Child:
    name: str
    command: list[str]
    log: Path
    topic: str
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    began_at: int = 0
    """Where the log of its last start begins."""

    def start(self, **variables: str) -> None:
        """``variables``: more of its environment."""
        self.began_at = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
            environment |= {"LEDGER_TOPIC": self.topic} | variables
            self.process = subprocess.Popen(
                self.command, cwd=REPO, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.starts += 1

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if not self.running or self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def tail(self) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-20:]) if self.log.exists() else ""
