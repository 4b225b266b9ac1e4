"""Where a SQLite file may live: WAL mode needs shared memory, so one machine and a local file system."""

from __future__ import annotations

import re
from pathlib import Path

from relevo.errors import ConfigError

_NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs"),
        *("orangefs", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse"),
        *("fuse.rclone", "fuse.davfs2"),
    }
)
_MOUNTS = Path("/proc/mounts")


def refuse_network(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise ``ConfigError`` if ``path`` lies on a network file system, as far as the system tells (Linux)."""
    try:
        text = mounts.read_text(errors="replace")
    except OSError:
        return
    kind = file_system_type(path, text)
    if kind in _NETWORK_TYPES:
        raise ConfigError(
            f"{path} lies on a network file system ({kind}), where SQLite's locks cannot be trusted. "
            "Put the embedded broker's file on a local disk, or use a broker that works across machines"
        )


def file_system_type(path: Path, mounts: str) -> str | None:
    """The type of the mount that holds ``path``, from the text of ``/proc/mounts``."""
    place = path.resolve()
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        depth = len(point.parts)
        if place.is_relative_to(point) and (best is None or depth >= best[0]):  # a later mount covers an earlier one
            best = (depth, fields[2])
    return best[1] if best else None
