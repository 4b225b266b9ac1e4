"""Packages of another Debian suite with all their libraries, unpacked (never installed) into a folder of their own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from . import packages
from .errors import ServiceError
from .settings import opt_dir
from .shell import run, say

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SHELL = ("dash", "bash", "coreutils", "grep", "sed", "mawk", "util-linux", "procps", "hostname", "base-files")


def debian_root(name: str, suite: str, wanted: Sequence[str], *, instead: str) -> Path:
    """A folder to ``chroot`` into, as root; fetched at the first call. The system's own packages stay as they are."""
    root = opt_dir() / f"root-{name}"
    done = root / ".done"
    mark = f"{suite} {' '.join(wanted)}"
    if done.exists() and done.read_text() == mark:
        return root
    if not packages.can_apt() or not KEYRING.exists() or not shutil.which("unshare"):
        raise ServiceError(f"{name} needs root and the apt of a Debian. Otherwise {instead}.")
    say(f"fetching {', '.join(wanted)} of Debian {suite}")
    shutil.rmtree(root, ignore_errors=True)
    apt = root / "apt"
    debs = _download(apt, suite, (*wanted, *SHELL), instead)
    for folder in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for deb in debs:
        run("dpkg-deb", "-x", deb, root, failing=f"unpacking {deb.name}", advice=f"Try again, or {instead}.")
    shutil.rmtree(apt)
    _finish(root)
    done.write_text(mark)
    return root


def _download(apt: Path, suite: str, wanted: Sequence[str], instead: str) -> list[Path]:
    """With an apt of its own, which believes that nothing is installed."""
    for folder in ("lists/partial", "cache/archives/partial", "etc/none"):
        (apt / folder).mkdir(parents=True)
    (apt / "etc/empty").write_text("")
    (apt / "etc/sources.list").write_text(f"deb [signed-by={KEYRING}] {_archive()} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": apt / "etc/sources.list",
        "Dir::Etc::sourceparts": apt / "etc/none",
        "Dir::Etc::preferences": apt / "etc/empty",
        "Dir::Etc::preferencesparts": apt / "etc/none",
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "etc/empty",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    command = ["apt-get", *(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))]
    advice = f"Check that apt reaches Debian {suite}, or {instead}."
    run(*command, "update", "-qq", failing=f"reading the package lists of Debian {suite}", advice=advice)
    fetch = ("install", "-y", "-qq", "--no-install-recommends", "--download-only", *wanted)
    run(*command, *fetch, failing=f"fetching packages of Debian {suite}", advice=advice)
    return sorted((apt / "cache/archives").glob("*.deb"))


def _archive() -> str:
    """Where this machine gets its own Debian from."""
    told = run(
        *("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"),
        failing="asking apt for its archive",
        advice="Run apt-get update.",
    )
    for line in told.splitlines():
        address, _, codename = line.partition(" ")
        if "security" not in address and not codename.endswith(("-security", "-updates")):
            return address
    raise ServiceError("apt knows no Debian archive on this machine")


def _finish(root: Path) -> None:
    """What package scripts would have done."""
    for folder in ("proc", "dev", "tmp", "srv/data", "etc"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for link, target in (("usr/bin/sh", "dash"), ("usr/bin/awk", "mawk")):
        if not (root / link).exists():
            (root / link).symlink_to(target)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
