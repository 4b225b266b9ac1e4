"""A reader who types what a page says, in a folder of their own, and looks whether it prints what the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import Block, Stop, steps
from tests.support.waiting import eventually_sync

PATIENCE_S = 30.0
STOP_S = 30.0


@dataclass
class Reader:
    """``replaced``: placeholders of the page and what this run has instead. Use as a context: what it started ends."""

    folder: Path
    replaced: Mapping[str, str] = field(default_factory=dict)
    _terminals: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._terminals.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def follow(self, page: Path) -> int:
        """Do everything the page says, in order; how many blocks were executed."""
        todo = steps(page)
        done = 0
        for index, step in enumerate(todo):
            after = todo[index + 1] if index + 1 < len(todo) else None
            expected = after.text if isinstance(after, Block) and "output" in after.words else None
            if isinstance(step, Stop):
                self.stop(step.name)
            elif self._do(step, expected):
                done += 1
        return done

    def _do(self, block: Block, expected: str | None) -> bool:
        if "file" in block.options:
            (self.folder / block.options["file"]).write_text(self._mine(block.text), "utf-8")
        elif "background" in block.options:
            self.start(block, expected)
        elif block.language == "sh" and "run" in block.words:
            self.run(block, expected)
        else:
            return False
        return True

    def run(self, block: Block, expected: str | None) -> None:
        """All lines in one shell. Output is what the reader sees: both streams."""
        code = int(block.options.get("fails", "0"))
        deadline = time.monotonic() + (PATIENCE_S if "eventually" in block.words else 0.0)
        while True:
            result = subprocess.run(
                ["sh", "-ec", self._mine(block.text)],
                cwd=self.folder,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=120,
            )
            seen = result.stdout.decode()
            if result.returncode == code and (expected is None or matches(seen, self._mine(expected))):
                return
            if time.monotonic() >= deadline:
                raise AssertionError(
                    f"{block.where}: code {result.returncode}, expected {code}\n--- printed\n{seen}\n"
                    f"--- the page says\n{expected}"
                )
            time.sleep(0.2)

    def start(self, block: Block, expected: str | None) -> None:
        """A terminal of its own; wait until it printed what the page shows."""
        name = block.options["background"]
        log = self.folder / f".{name}.log"
        with log.open("wb") as stream:
            self._terminals[name] = process = subprocess.Popen(
                ["sh", "-c", f"exec {self._command(block)}"],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )

        def printed() -> bool:
            seen = log.read_text("utf-8", "replace")
            if expected is None or matches(seen, self._mine(expected)):
                return True
            if process.poll() is not None:
                raise AssertionError(
                    f"{block.where}: ended with {process.returncode}\n{seen}\n--- the page says\n{expected}"
                )
            return False

        try:
            eventually_sync(printed, what=f"{block.where} prints what the page shows", timeout_s=PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- printed\n{log.read_text('utf-8', 'replace')}") from None
        if "killed" in block.words:
            assert process.wait(PATIENCE_S) == -signal.SIGKILL, block.where

    def stop(self, name: str) -> None:
        """Ctrl+C; the process must end in good order."""
        process = self._terminals.pop(name)
        process.send_signal(signal.SIGINT)
        log = (self.folder / f".{name}.log").read_text("utf-8", "replace")
        assert process.wait(STOP_S) == 0, f"{name} ended with {process.returncode}\n{log}"

    def _command(self, block: Block) -> str:
        """``NAME=value command`` needs ``env`` behind an ``exec``."""
        command = self._mine(block.text).strip()
        assert "\n" not in command, f"{block.where}: one command for one terminal"
        return f"env {command}" if re.match(r"[A-Z_]+=", command) else command

    def _mine(self, text: str) -> str:
        for placeholder, value in self.replaced.items():
            text = text.replace(placeholder, value)
        return text

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "PYTEST_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
        return kept | {"PATH": path, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def matches(seen: str, expected: str) -> bool:
    """Whether ``seen`` is what the page shows: ``…`` is any text within a line, alone on a line any lines."""
    pattern = ""
    for line in (each.rstrip() for each in expected.strip("\n").splitlines()):
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.split("…")) + "\n"
    text = "".join(f"{line.rstrip()}\n" for line in seen.strip("\n").splitlines())
    return re.fullmatch(pattern, text) is not None
