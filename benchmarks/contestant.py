"""What takes part in a benchmark of relays: the seam that ``drain`` and ``latency`` know, and how its processes run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg

SUBJECTS = ("order", "payment", "shipment")
"""Each event goes to the topic ``PREFIX.SUBJECT``."""
NOTE = "y" * 240

_FILL = """
create procedure bench_fill(prefix text, events int, keys int, size int) language plpgsql as $fill$
declare
  subjects text[] := array['order', 'payment', 'shipment'];
  subject text; k text; body text;
begin
  for i in 1 .. events loop
    subject := subjects[i % 3 + 1];
    k := 'o' || i % keys;
    body := rpad('{"order_id": ' || i || ', "note": "', size - 2, 'y') || '"}';
    INSERT;
    commit;
  end loop;
end $fill$
"""


class Unavailable(Exception):
    """This contestant cannot run on this machine; the text says why. The others are measured all the same."""


@dataclass(frozen=True)
class Contestant(ABC):
    """A relay of ours or of others: its tables, its way to write an event, its processes.

    A run calls ``ready``, ``prepare`` and ``fill``, starts ``processes`` times ``command``, and ends with ``drop``, in
    a database of its own. Messages must arrive at the topic ``PREFIX.SUBJECT``, under the event's key, with the body
    somewhere in the value. ``quick``: tuned for latency, not for a backlog.
    """

    name: str

    insert: ClassVar[str] = ""
    """One statement that writes an event, with ``{prefix}``, ``{subject}``, ``{key}`` and ``{body}``, all text."""
    table: ClassVar[str] = ""
    settings: ClassVar[str] = ""
    """For the report: versions, and what differs from the defaults."""

    @property
    def ours(self) -> bool:
        return False

    def ready(self) -> None:  # noqa: B027 - most need nothing
        """Fetch and build what it needs, once a machine. Raises ``Unavailable``."""

    @abstractmethod
    def prepare(self, url: str) -> None:
        """Tables, and whatever has to be there before the first event is written."""

    def fill(self, url: str, prefix: str, events: int, keys: int, size: int) -> None:
        """Events of ``size`` bytes, each in a transaction of its own, as an application writes them."""
        insert = self.insert.format(prefix="prefix", subject="subject", key="k", body="body")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set synchronous_commit = off")  # of the filling only
            connection.execute(_FILL.replace("INSERT", insert).encode())
            connection.execute("call bench_fill(%s, %s, %s, %s)", (prefix, events, keys, size))
            connection.execute(f"vacuum analyze {self.table}".encode())
            connection.execute("checkpoint")

    def append(self, connection: psycopg.Connection[Any], prefix: str, number: int) -> None:
        """Write one event on a connection in autocommit."""
        connection.execute(self.statement(self.insert), self.values(prefix, number))

    @staticmethod
    def statement(insert: str) -> bytes:
        """``insert`` with parameters of psycopg's for what ``values`` gives."""
        return insert.format(**{name: f"%({name})s::text" for name in ("prefix", "subject", "key", "body")}).encode()

    @staticmethod
    def values(prefix: str, number: int) -> dict[str, str]:
        key = f"o{number % 10_000}"
        body = json.dumps({"n": number, "key": key, "note": NOTE})
        return {"prefix": prefix, "subject": SUBJECTS[number % 3], "key": key, "body": body}

    @abstractmethod
    def command(
        self, url: str, bootstrap: str, prefix: str, events: int, folder: Path, *, quick: bool = False
    ) -> list[str]:
        """A process in the foreground that ends on SIGTERM. ``folder``: for its files."""

    def processes(self, quick: bool) -> int:
        """How many of them share the work."""
        return 1

    def settled(self, url: str) -> int | None:
        """How many events are settled, where that is said of each."""
        return None

    def end(self) -> None:  # noqa: B027 - most leave nothing
        """Let go of what this process has open; database and slots are dropped afterwards."""


def clean(**more: str) -> dict[str, str]:
    """This environment without settings of Relevo's, and ``more``."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")} | more


@contextlib.contextmanager
def started(command: list[str], copies: int, log: Path, **more: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """``copies`` of a process that write to ``log``; ended, by force after 30 s, when the block is left. ``more``: of
    their environment."""
    environment = clean(**more)
    with log.open("wb") as stream:
        running = [subprocess.Popen(command, env=environment, stdout=stream, stderr=stream) for _ in range(copies)]
        try:
            yield running
        finally:
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def folder(name: str) -> Path:
    """Where a contestant keeps what it fetched and built: among the benchmark's servers."""
    return Path(os.environ.get("RELEVO_SERVICES_DIR", ".services-bench")).resolve() / name


def call(command: list[str | Path], doing: str, cwd: Path | None = None) -> None:
    """Run a step of an installation. Raises ``Unavailable`` with the end of what it printed."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    except FileNotFoundError as error:
        raise Unavailable(f"{doing}: there is no {command[0]} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{doing}: not done within 10 minutes") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise Unavailable(f"{doing}: {said[-400:]}")
