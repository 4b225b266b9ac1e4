"""Which topic a position belongs to: a topic that is deleted and made anew has the same name and another id (KIP-516).

The mark is committed with each position, as its metadata. A position without one, or with another tool's metadata, is
believed. So is one whose mark names another cluster: a tool that copies groups from cluster to cluster (MirrorMaker)
has translated it.
"""

from __future__ import annotations

from typing import Final

_PREFIX: Final = "relevo cluster="
_BETWEEN: Final = " topic="


def mark_of(cluster: str, topic_id: str) -> str:
    return f"{_PREFIX}{cluster}{_BETWEEN}{topic_id}"


def read_mark(metadata: str | None) -> str | None:
    """The mark in a committed position's metadata, if that has one."""
    return metadata if metadata and metadata.startswith(_PREFIX) and _BETWEEN in metadata else None


def replaced(mark: str, now: str) -> bool:
    """Whether ``now`` is another topic than ``mark``, in the same cluster."""
    return mark != now and mark.partition(_BETWEEN)[0] == now.partition(_BETWEEN)[0]
