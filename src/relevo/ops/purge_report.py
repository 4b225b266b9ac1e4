"""What ``relevo purge --output json`` prints."""

from __future__ import annotations

import msgspec


class PartitionFate(msgspec.Struct, frozen=True, kw_only=True):
    """``stays``: why; empty when it goes, or went, with its ``rows``. Of a partition that stays rows are estimated."""

    name: str
    rows: int
    stays: str


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """``dry_run``: nothing was changed, these would go. ``then``: what becomes of the outbox's, ``delete``, ``archive``
    or ``partitions``. The journal is not counted beforehand. ``outbox`` counts the rows of dropped ``partitions`` too;
    ``cut``: a partition was closed, or would be."""

    dry_run: bool
    outbox: int
    inbox: int
    journal: int
    then: str
    effects: int = 0
    partitions: list[PartitionFate] = []
    cut: bool = False
