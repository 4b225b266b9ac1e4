"""A RabbitMQ of a test's own, which it may freeze and kill. Started by ``tools.services`` in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.freezing import freeze
from tools.services.processes import descendants
from tools.services.settings import REPO, opt_dir


class PrivateRabbitMQ:
    """``url`` stays the same over ``kill`` and ``start``."""

    def __init__(self, folder: Path, base_port: int) -> None:
        self._folder = folder
        # A server given by the user is not ours to take away, so its variable must not reach the tool.
        self._env = {name: value for name, value in os.environ.items() if name != "RELEVO_TEST_RABBITMQ_URL"} | {
            "RELEVO_SERVICES_DIR": str(folder),
            "RELEVO_SERVICES_OPT": str(opt_dir()),
            "RELEVO_SERVICES_BASE_PORT": str(base_port),
            "RELEVO_SERVICES_ENGINE": "native",
        }

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._state()['ports']['main']}/"

    @property
    def pids(self) -> list[int]:
        """The script's and the virtual machine's, with its helpers."""
        first = int(str(self._state()["process"]["pid"]))
        return [first, *(process.pid for process in descendants(first))]

    def start(self) -> None:
        self._tool("up", "rabbitmq")

    def stop(self) -> None:
        self._tool("down", "rabbitmq")

    def freeze(self) -> None:
        self._frozen = self.pids
        freeze(self._frozen)

    def thaw(self) -> None:
        for pid in self._frozen:
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        self._tool("kill", "rabbitmq")

    def _state(self) -> dict[str, dict[str, object]]:
        return json.loads((self._folder / "rabbitmq" / "state.json").read_text())

    def _tool(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tools.services", *arguments]
        done = subprocess.run(command, cwd=REPO, env=self._env, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def private_rabbitmq(folder: Path, base_port: int) -> Iterator[PrivateRabbitMQ]:
    rabbitmq = PrivateRabbitMQ(folder, base_port)
    rabbitmq.start()
    try:
        yield rabbitmq
    finally:
        rabbitmq.stop()
