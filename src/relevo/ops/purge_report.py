"""What ``relevo purge --output json`` prints."""

from __future__ import annotations

import msgspec


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """``dry_run``: nothing was changed, these would go. ``then``: what becomes of the outbox's, ``delete`` or
    ``archive``. The journal is not counted beforehand."""

    dry_run: bool
    outbox: int
    inbox: int
    journal: int
    then: str
