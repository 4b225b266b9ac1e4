"""Relay processes on a stack: started, killed, frozen, and what they left on the wire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from relevo.message import Message
from relevo.relay.flight import PAGES
from tests.support.cli import environment
from tests.support.stacks import Stack

LEASE_S = 3.0
PAGE = 50


def under_way(visits: int, page: int = PAGE) -> int:
    """Messages that may come again when a relay is killed at its ``visits``-th visit of a point: of the pages with the
    broker, and of those that landed before, which may all have waited for one settlement."""
    return (PAGES + visits - 1) * page


class Relays:
    """Starts ``relevo relay`` on one stack, and ends what is left. Everything goes to ``topic`` unless it is named."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.store = stack.store
        self.topic = stack.topic
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    async def open(self, *more: str, lease_s: float = LEASE_S) -> None:
        """The topics, and the settings: after what the test sets in ``stack.options``."""
        await self.stack.open(self.topic, *more)
        self.config.write_text(self.stack.config(lease_s=lease_s, relay=f"batch_max = {PAGE}\n"))

    @property
    def config(self) -> Path:
        return self.folder / "relevo.toml"

    def start(self, probe: str | None = None) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        more: Mapping[str, str] = {"RELEVO_PROBE": probe} if probe else {}
        with self.log(number).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "relevo", "--config", str(self.config), "relay"],
                cwd=self.folder,
                env=environment(more),
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def operator(self, *arguments: str) -> None:
        """A command of ``relevo`` that must succeed."""
        command = [sys.executable, "-m", "relevo", "--config", str(self.config), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=environment(None), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    def log(self, number: int) -> Path:
        return self.folder / f"relay{number}.log"

    def said(self, number: int, text: str) -> bool:
        return text in self.log(number).read_text()

    def fill(self, count: int, keys: int = 8, start: int = 0, topic: str | None = None) -> None:
        self.store.fill(count, keys=keys, start=start, topic=topic or self.topic)

    def owners(self) -> dict[str, int]:
        rows = self.store.query("select holder, count(*) from relevo_lane where holder is not null group by holder")
        return {str(holder): count for holder, count in rows}

    def unsettled(self, topic: str) -> int:
        where = f"settled_at is null and topic = '{topic}'"
        return int(self.store.query(f"select count(*) from relevo_outbox where {where}")[0][0])

    async def on_the_wire(self, enough: int, *topics: str) -> list[Message]:
        """Everything in the broker, in the order of each shard: at least ``enough`` different messages."""
        return await self.stack.read(enough, *topics)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()  # also what is stopped
            process.wait()
