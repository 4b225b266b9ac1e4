"""A Kafka of a test's own, which it may freeze and kill. Started by ``tools.services`` in a folder of its own."""

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
from tools.services.settings import REPO, opt_dir


class PrivateKafka:
    """``url`` stays the same over ``kill`` and ``start``."""

    def __init__(self, folder: Path, base_port: int, proxy_port: int | None = None) -> None:
        """``proxy_port``: clients of ``proxied`` are sent there by the broker, for all connections they make."""
        self._folder = folder
        # A server given by the user is not ours to take away, so its variable must not reach the tool.
        self._env = {name: value for name, value in os.environ.items() if name != "RELEVO_TEST_KAFKA_URL"} | {
            "RELEVO_SERVICES_DIR": str(folder),
            "RELEVO_SERVICES_OPT": str(opt_dir()),
            "RELEVO_SERVICES_BASE_PORT": str(base_port),
            "RELEVO_SERVICES_ENGINE": "native",
        }
        if proxy_port is not None:
            self._env["RELEVO_SERVICES_KAFKA_PROXY_PORT"] = str(proxy_port)

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self._state()['ports']['main']}"

    @property
    def proxied(self) -> tuple[str, int]:
        """Where a proxy leads to."""
        return "127.0.0.1", int(str(self._state()["ports"]["proxied"]))

    @property
    def pid(self) -> int:
        return int(self._state()["process"]["pid"])

    def start(self) -> None:
        self._tool("up", "kafka")

    def stop(self) -> None:
        self._tool("down", "kafka")

    def freeze(self) -> None:
        freeze([self.pid])

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _state(self) -> dict[str, dict[str, object]]:
        return json.loads((self._folder / "kafka" / "state.json").read_text())

    def _tool(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tools.services", *arguments]
        done = subprocess.run(command, cwd=REPO, env=self._env, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def private_kafka(folder: Path, base_port: int, proxy_port: int | None = None) -> Iterator[PrivateKafka]:
    kafka = PrivateKafka(folder, base_port, proxy_port)
    kafka.start()
    try:
        yield kafka
    finally:
        kafka.stop()
