"""What every service can do; a new one is a subclass in a file of its own, listed in registry.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from . import compose, ports, processes
from .errors import ServiceError
from .processes import Process
from .settings import PORT_STEP, base_port, opt_dir, services_dir
from .shell import OUTPUT_TAIL_CHARS, file_lock, say

READY_POLL_S = 0.05


@dataclass(frozen=True)
class Command:
    argv: Sequence[str | Path]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None


class Service:
    """One server on loopback.

    A subclass says how to `install`, `prepare`, `command` and `ready`. The verbs (`start`, `stop`, `kill`, `restart`,
    `wipe`) are safe to call from several processes: a file lock puts them one after the other. `start` and `stop` of
    something that already is so do nothing. Every failure is a ServiceError.
    """

    name: ClassVar[str]
    url_variable: ClassVar[str]
    slot: ClassVar[int]  # ports are base + 10 * slot + 0, 1, ...; never reuse a slot
    port_names: ClassVar[Sequence[str]] = ("main",)
    start_timeout_s: ClassVar[float] = 60.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    optional: ClassVar[bool] = False  # started only when it is named

    # -- for subclasses ------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Make sure the binaries are there. Called under a lock, before every start: be quick when they are."""

    def prepare(self) -> None:
        """Data folder and configuration; the ports are known."""

    def command(self) -> Command:
        raise NotImplementedError

    def ready(self) -> bool:
        return ports.accepts(self.port())

    def make_url(self, port: int) -> str:
        raise NotImplementedError

    def beside(self) -> Mapping[str, str]:
        """Variables that tell `run`'s command where it finds further versions; installs them. Under no lock."""
        return {}

    def data_folders(self) -> Sequence[Path]:
        """What `wipe` removes."""
        return (self.folder,)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return services_dir() / self.name

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def state(self) -> dict[str, Any]:
        try:
            loaded: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        except FileNotFoundError:
            return {}
        return loaded

    @property
    def process(self) -> Process | None:
        recorded = self.state.get("process")
        return None if recorded is None else Process(recorded["pid"], recorded["start_time"])

    @property
    def given_url(self) -> str | None:
        """The user's own server, from the environment; None also when the variable just repeats our URL."""
        given = os.environ.get(self.url_variable)
        return None if not given or given == self._own_url() else given

    @property
    def running(self) -> bool:
        if self.given_url is not None:
            return True
        if self.state.get("engine") == "compose":
            return compose.is_running(self.name)
        process = self.process
        return process is not None and process.alive()

    @property
    def url(self) -> str:
        """Raises ServiceError when nothing runs."""
        url = self.given_url or (self._own_url() if self.running else None)
        if url is None:
            raise ServiceError(f"{self.name} is not running. Start it: make services-up")
        return url

    @property
    def is_for_now(self) -> bool:
        return bool(self.state.get("for_now")) and self.running

    def port(self, name: str = "main") -> int:
        return int(self.state["ports"][name])

    def describe(self) -> str:
        if self.given_url is not None:
            return f"yours     {self.given_url} (from {self.url_variable})"
        if not self.running:
            return "down"
        process = self.process
        how = "compose" if process is None else f"pid {process.pid}, {processes.memory_mb(process.pid)} MB"
        return f"{'up' if self._is_ready() else 'not ready':9} {self.url} ({how})"

    # -- verbs ---------------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Returns True when it was down before. Ready for clients on return."""
        if self.given_url is not None:
            return False
        with self._lock():
            if self.running and self._is_ready():
                return False
            began = time.monotonic()
            if compose.is_wanted():
                self._start_compose()
            else:
                self._start_native()
            say(f"{self.name}: up in {time.monotonic() - began:.1f} s")
            return True

    def start_for_now(self) -> bool:
        """As `start`, but if it was down, `tools.services run` stops it when the last command using it has ended."""
        started = self.start()
        if started:
            self._save(for_now=True)
        return started

    def keep(self) -> None:
        """Somebody wants it to stay up."""
        self._save(for_now=False)

    def stop(self) -> bool:
        """An orderly stop; returns True when it was up before."""
        self._refuse_given("stop")
        with self._lock():
            return self._stop()

    def kill(self) -> None:
        """SIGKILL it and all its children; its data stays as it is."""
        self._refuse_given("kill")
        with self._lock():
            if self.state.get("engine") == "compose":
                compose.run("kill", self.name)
            elif (process := self.process) is not None:
                process.kill()
                self._save(process=None)

    def restart(self) -> None:
        self.stop()
        self.start()

    def wipe(self) -> None:
        """Stop it and forget all its data."""
        self._refuse_given("wipe")
        with self._lock():
            if self.state.get("engine") == "compose":
                compose.run("rm", "--force", "--stop", "--volumes", self.name)
            else:
                self._stop()
            for folder in self.data_folders():
                shutil.rmtree(folder, ignore_errors=True)

    # -- inside --------------------------------------------------------------------------------------------------

    def _lock(self) -> Any:
        return file_lock(services_dir() / f".{self.name}.lock")

    def _own_url(self) -> str | None:
        own_ports = self.state.get("ports")
        return self.make_url(int(own_ports["main"])) if own_ports else None

    def _is_ready(self) -> bool:
        return compose.is_healthy(self.name) if self.state.get("engine") == "compose" else self.ready()

    def _refuse_given(self, verb: str) -> None:
        if self.given_url is not None:
            raise ServiceError(f"{self.name} is your own ({self.url_variable} is set): this tool does not {verb} it.")

    def _start_native(self) -> None:
        with file_lock(opt_dir() / ".lock"):
            self.install()
        self._stop()  # up but not ready, or half gone
        self.folder.mkdir(parents=True, exist_ok=True)
        self._save(engine="native", ports=self._choose_ports())
        self.prepare()
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        command = self.command()
        process = processes.spawn(command.argv, self.log, command.env, command.user)
        self._save(process={"pid": process.pid, "start_time": process.start_time})
        deadline = time.monotonic() + self.start_timeout_s
        while not self.ready():
            if not process.alive():
                raise ServiceError(f"ended while starting; its log {self.log} ends with:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                process.kill()
                raise ServiceError(
                    f"not ready in {self.start_timeout_s:.0f} s; its log {self.log} ends with:\n"
                    f"{self._log_tail()}\nIf its data is damaged: python -m tools.services wipe {self.name}"
                )
            time.sleep(READY_POLL_S)

    def _start_compose(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.state.get("engine") != "compose" or not compose.is_running(self.name):
            self._save(engine="compose", ports=self._choose_ports(), process=None)
        compose.run("up", "--detach", "--wait", self.name, env={f"RELEVO_{self.name.upper()}_PORT": str(self.port())})

    def _stop(self) -> bool:
        if self.state.get("engine") == "compose":
            was_running = compose.is_running(self.name)
            compose.run("stop", self.name)
            return was_running
        process = self.process
        if process is None:
            return False
        was_running = process.alive()
        if was_running and not process.stop(self.stop_signal):
            say(f"{self.name}: did not stop in {processes.STOP_TIMEOUT_S:.0f} s and was killed")
        self._save(process=None)
        return was_running

    def _choose_ports(self) -> dict[str, int]:
        kept = self.state.get("ports", {})
        chosen: dict[str, int] = {}
        for index, name in enumerate(self.port_names):
            first = base_port() + PORT_STEP * self.slot + index
            chosen[name] = ports.choose(kept.get(name), first, chosen.values())
        return chosen

    def _save(self, **changes: Any) -> None:
        if self.folder.exists():
            new = self.folder / "state.json.new"
            new.write_text(json.dumps({**self.state, **changes}, indent=1))
            new.replace(self.folder / "state.json")

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-OUTPUT_TAIL_CHARS:].strip()
