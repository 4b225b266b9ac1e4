"""Where the embedded broker's file may live, and what it may be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo.brokers import broker_for
from relevo.brokers.embedded.broker import path_of
from relevo.brokers.embedded.filesystem import file_system_type, refuse_network
from relevo.errors import ConfigError

MOUNTS = r"""
/dev/root / ext4 rw 0 0
server:/export /mnt/nfs nfs4 rw 0 0
me@host: /mnt/over\040there fuse.sshfs rw 0 0
/dev/sdb /mnt/nfs/local xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/app.db", "ext4"),
        ("/mnt/nfs/app.db", "nfs4"),
        ("/mnt/nfsx/app.db", "ext4"),
        ("/mnt/over there/a/app.db", "fuse.sshfs"),
        ("/mnt/nfs/local/app.db", "xfs"),
    ],
)
def test_the_nearest_mount_counts(path: str, kind: str) -> None:
    assert file_system_type(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    """SQLite's locks cannot be trusted there."""
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    with pytest.raises(ConfigError, match="nfs4"):
        refuse_network(Path("/mnt/nfs/app.db"), mounts)
    refuse_network(Path("/var/app.db"), mounts)
    refuse_network(Path("/mnt/nfs/app.db"), tmp_path / "no-such-file")  # not Linux: nothing is known


@pytest.mark.parametrize(
    ("url", "path"),
    [("embedded:a.db", "a.db"), ("embedded:/x/a.db", "/x/a.db"), ("embedded:///x/a.db", "/x/a.db")],
)
def test_urls(url: str, path: str) -> None:
    assert path_of(url) == Path(path)


@pytest.mark.parametrize("url", ["embedded:", "embedded://host/a.db", "embedded::memory:", "embedded:///"])
def test_urls_that_name_no_file(url: str) -> None:
    with pytest.raises(ConfigError):
        broker_for(url)


@pytest.mark.parametrize(
    "options", [{"lease": 1}, {"lease_s": 0}, {"partitions": 0}, {"partitions": "many"}, {"retention_s": -1}]
)
def test_bad_options(options: dict[str, str | int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        broker_for("embedded:a.db", options)
