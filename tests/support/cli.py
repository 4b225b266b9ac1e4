"""The real ``relevo`` command in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BLOCKER = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from relevo.cli.main import main
main()
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def refused(self, code: int, *parts: str) -> str:
        """Assert one clear message on stderr: exit code, one line, no stack trace, and every part of it; returns it."""
        lines = self.err.strip().splitlines()
        assert self.code == code, self
        assert len(lines) == 1 and lines[0].startswith("relevo: "), self
        assert "Traceback" not in self.err and self.out == "", self
        for part in parts:
            assert part in lines[0], (part, lines[0])
        return lines[0]


@dataclass(frozen=True)
class Cli:
    """``relevo`` in the folder ``cwd``, with nothing of this process's RELEVO_… environment."""

    cwd: Path

    def __call__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        without: tuple[str, ...] = (),
        under: tuple[str, ...] = (),
    ) -> Result:
        """Run to the end. ``without``: top-level modules that cannot be imported, as if their extra were missing;
        ``under``: a command that runs it."""
        done = subprocess.run(
            [*under, *self._command(arguments, without)],
            cwd=self.cwd,
            env=environment(env),
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def running(self, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """A process that works until it is told to stop; killed at the end if it is still there."""
        process = subprocess.Popen(
            self._command(arguments, ()),
            cwd=self.cwd,
            env=environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_interruptible,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @staticmethod
    def _command(arguments: tuple[str, ...], without: tuple[str, ...]) -> list[str]:
        if without:
            return [sys.executable, "-c", BLOCKER.format(names=set(without)), *arguments]
        return [str(Path(sys.executable).with_name("relevo")), *arguments]


def environment(more: Mapping[str, str] | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
    return kept | {"COLUMNS": "200", "NO_COLOR": "1"} | dict(more or {})


def _interruptible() -> None:
    """A test that runs in the background has SIGINT ignored, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
