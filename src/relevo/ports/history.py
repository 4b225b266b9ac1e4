"""The history port: what a broker (or the outbox) still keeps, read apart from any group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from relevo.ports.broker import Delivery


class History(Protocol):
    """Messages as they are kept, up to an end that was fixed when this was opened. Nothing is settled and nobody's
    position moves. Used by one task."""

    async def take(self, max_messages: int) -> Sequence[Delivery]:
        """The next ones, in the order of positions within each shard; none when the end is reached. Raises
        ``UnreachableError``; the caller may call again."""

    async def aclose(self) -> None:
        """Idempotent."""


class KeepsHistory(Protocol):
    """What a broker offers beside ``Broker`` where its capability ``keeps_history`` is true."""

    async def history(
        self, topics: Sequence[str], *, since: datetime | None = None, after: Mapping[str, int] | None = None
    ) -> History:
        """Read ``topics`` again: each shard behind its position in ``after``; where that is not given, from the first
        message that arrived at ``since`` or later (about; earlier ones may come too), or from the oldest kept. Raises
        ``ConfigError`` for an unknown topic."""
